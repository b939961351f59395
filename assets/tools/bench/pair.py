"""One loaded pair of models for several engines, one after the other, that differ in their settings."""

from dataclasses import replace

from assets.tools.widen import pair_files
from core.config import EngineConfig
from core.engine import Engine
from core.engine_builder import LoadedPair
from core.errors import InvalidSetting
from core.planning.hardware import cap_memory, resolve_device, this_machine
from core.planning.plan import Plan, make_plan

ROOM = 256  # tokens beyond prompt and answer: rounds may be longer than needed


class SharedPair:
    """Weights that are loaded once.

    Raises (when made):
        CoreError: no such model, or its weights do not fit.
    """

    def __init__(self, config: EngineConfig, most_tokens: int) -> None:
        """`most_tokens`: of a prompt and its answer, which sets the context where the settings do not."""
        if config.num_gpus > 1:
            raise InvalidSetting("Engines that share weights are measured on one GPU.", hint="Leave out --gpus.")
        self._files, self._machine = pair_files(config), this_machine()
        self.config = config if config.context else replace(config, context=self.context_of(most_tokens))
        self.model, self.plan = self._files.entry.name, self.plan_of(self.config)
        self.device = resolve_device(self.plan.device.value)
        cap_memory(self.device, config.gpu_memory_gib)
        self._pair = LoadedPair.load(self._files, self.config, self.plan, self.device)
        self.has_draft = self._pair.draft is not None

    def context_of(self, tokens: int) -> int:
        """The context for so many tokens of prompt and answer."""
        return min(self._files.target.max_context, -(-(tokens + ROOM) // 64) * 64)

    def plan_of(self, config: EngineConfig) -> Plan:
        """What `make_plan` makes of the settings. Raises NotEnoughMemory."""
        return make_plan(self._files.size(), self._files.draft, config, self._machine)

    def engine(self, config: EngineConfig) -> Engine:
        """An engine with these settings; the memory of the one before must be free. Raises NotEnoughMemory."""
        plan = self.plan_of(config)
        cap_memory(self.device, config.gpu_memory_gib)
        return Engine.of(self._pair, config, plan)
