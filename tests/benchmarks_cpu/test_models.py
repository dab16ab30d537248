from benchmarks.cpu.models import MODELS, Model


def test_widths_follow_from_layer_to_layer():
    layers = MODELS["gat"].layers(10, 3)
    assert [(layer.in_features, layer.out_features) for layer in layers] == [
        (10, 32),
        (128, 32),
        (128, 3),
    ]
    assert [layer.is_last for layer in layers] == [False, False, True]


def test_attention_aggregates_anew_in_every_epoch():
    assert {name for name in MODELS if not MODELS[name].aggregates_once} == {"gat"}


def test_parameters_of_attention():
    shapes = Model("gat", num_layers=2, hidden=5, heads=2).parameter_shapes(7, 3)
    assert shapes == {
        "0/kernel": (7, 10),
        "0/attention_sender": (2, 5),
        "0/attention_receiver": (2, 5),
        "0/bias": (10,),
        "1/kernel": (10, 6),
        "1/attention_sender": (2, 3),
        "1/attention_receiver": (2, 3),
        "1/bias": (3,),
    }


def test_every_layer_but_the_last_has_a_norm():
    shapes = MODELS["sage"].parameter_shapes(7, 3)
    assert {name for name in shapes if "norm" in name} == {
        f"{layer}/norm/{name}" for layer in (0, 1) for name in ("scale", "bias")
    }


def test_a_bias_in_front_of_a_norm_has_no_effect():
    names = MODELS["sage"].parameter_shapes(7, 3)
    assert {name for name in names if not MODELS["sage"].has_effect(name)} == {"0/bias", "1/bias"}
    assert all(map(MODELS["gcn"].has_effect, MODELS["gcn"].parameter_shapes(7, 3)))
