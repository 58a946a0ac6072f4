"""Functions that a compiler may fuse."""

import warnings

from dvrl import fuse


def test_the_compilers_advice_is_not_for_those_who_train():
    def warned(module: str) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn_explicit("consider this", UserWarning, "file.py", 1, module, {})
        return bool(caught)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert warned("torch._inductor.lowering")
        fuse._compiled.__wrapped__(lambda x: x)
        assert not warned("torch._inductor.lowering")
        assert warned("torch.nn.modules.module")
