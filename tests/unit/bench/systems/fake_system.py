"""A fake system under test that only answers commands; it runs as a separate process."""

from __future__ import annotations

import subprocess
import sys
import threading

from headrace.bench.systems.adapter import SutDescription
from headrace.bench.systems.process import serve
from headrace.errors import HeadraceError


class FakeAdapter:
    def start(self, config, events):
        print("what libraries print goes to standard error")
        self.options, self.events, self.broken = config.options, events, False
        if config.options.get("child"):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        if config.options.get("thread"):
            threading.Thread(target=threading.Event().wait).start()
        if config.options.get("fails"):
            raise HeadraceError("it cannot run here", hint="try another one")
        for query in config.queries:
            if query.name.startswith("bad"):
                events.report_refused(query.name, "it is bad")
        return SutDescription({"fake": "1"}, {"queries": len(config.queries)})

    def limit_nodes(self):
        self.events.report_live("limited")
        if self.options.get("cannot limit"):
            raise HeadraceError("a node has ended")

    def change(self, added, removed):
        for name in removed:
            self.events.report_removed(name)
        for query in added:
            self.broken = self.broken or query.name == "breaks"
            self.events.report_live(query.name)

    def read_component_seconds(self):
        return {"join": 1.5}

    def check(self):
        if self.broken:
            raise HeadraceError("it broke")

    def close(self):
        pass


if __name__ == "__main__":
    serve(FakeAdapter())
