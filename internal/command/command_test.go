package command_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
)

func shell(script string) cluster.CommandGate {
	return cluster.CommandGate{Args: []string{"sh", "-c", script}}
}

func TestRunGate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"check.sh": 0o700, "plain.sh": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nls check.sh\nexit 7\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	gates := command.Gates{Env: []string{"PATH=" + os.Getenv("PATH"), "PROXMOX_VE_API_TOKEN=u@pve!t=s3cret", "KUBECONFIG=/k"}}
	cases := map[string]struct {
		gate cluster.CommandGate
		exit int
		said string
		err  string
		kind fault.Kind
	}{
		"holds":           {gate: shell("echo all well"), said: "all well"},
		"does not":        {gate: shell("echo one; echo two >&2; exit 3"), exit: 3, said: "one; two"},
		"its environment": {gate: shell("echo $RECAST_NODE $KUBECONFIG ${PROXMOX_VE_API_TOKEN-none}"), said: "wk1 /k none"},
		"no input":        {gate: shell("cat"), said: ""},
		"by its path":     {gate: cluster.CommandGate{Args: []string{"./check.sh"}, Dir: dir}, exit: 7, said: "check.sh"},
		"not there":       {gate: cluster.CommandGate{Args: []string{"./other.sh"}, Dir: dir}, err: "run ./other.sh: ", kind: fault.Refused},
		"not in PATH":     {gate: cluster.CommandGate{Args: []string{"no-such-program"}}, err: "run no-such-program: ", kind: fault.Refused},
		"not executable":  {gate: cluster.CommandGate{Args: []string{"./plain.sh"}, Dir: dir}, err: "run ./plain.sh: ", kind: fault.Refused},
		"killed":          {gate: shell("kill -9 $$"), err: "run sh: signal: killed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exit, said, err := gates.RunGate(t.Context(), c.gate, []string{"RECAST_NODE=wk1"})
			if c.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), c.err) || fault.KindOf(err) != c.kind {
					t.Errorf("kind %d: %v", fault.KindOf(err), err)
				}
				return
			}
			if err != nil || exit != c.exit || said != c.said {
				t.Errorf("%d, %q, %v; want %d, %q", exit, said, err, c.exit, c.said)
			}
		})
	}
}

// A program whose time is over ends with everything that it has started.
func TestRunGateEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	alive := filepath.Join(t.TempDir(), "fifo")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	if err := syscall.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	script := "echo here; (sleep 600; echo late) & echo >" + alive + "; wait"
	go func() {
		_, err := os.ReadFile(alive) // until the program is at it
		cancel(errors.Join(over, err))
	}()
	start := time.Now()
	_, _, err := command.Gates{Env: os.Environ()}.RunGate(ctx, shell(script), nil)
	if !errors.Is(err, over) || err.Error() != "sh was stopped: it said last: here: over" {
		t.Errorf("err = %v", err)
	}
	if took := time.Since(start); took > 15*time.Second { // the sleeping child keeps the output open
		t.Errorf("it took %s", took)
	}
}
