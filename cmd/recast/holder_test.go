package main

import (
	"os/exec"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

func TestDead(t *testing.T) {
	t.Parallel()
	me := holder()
	if me.Boot == "" {
		t.Skip("no /proc here: no holder is ever known to be dead")
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	alive := me
	alive.PID, alive.Start = child.Process.Pid, processStart(child.Process.Pid)
	if dead(alive) {
		t.Error("a running process counts as dead")
	}
	_ = child.Process.Kill() // it is ours
	_ = child.Wait()         // "signal: killed"
	if !dead(alive) {
		t.Error("a process that was killed does not count as dead")
	}
	for name, other := range map[string]cluster.Holder{
		"this process":   me,
		"another host":   {Host: "elsewhere", Boot: me.Boot, PID: alive.PID, Start: alive.Start},
		"another boot":   {Host: me.Host, Boot: "other", PID: alive.PID, Start: alive.Start},
		"unknown start":  {Host: me.Host, Boot: me.Boot, PID: alive.PID},
		"nothing at all": {},
	} {
		if dead(other) {
			t.Errorf("%s counts as dead", name)
		}
	}
}
