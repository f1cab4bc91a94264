package rehearse

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// trial is one trial in progress.
type trial struct {
	planning.Trial
	*Rehearser
	scratchVM // zero until it is created
}

func (t *trial) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.Host, Firmware: t.Firmware, Medium: t.Medium, Nodes: t.Nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.requireWhole(vm); err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.Nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}

func (t *trial) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	if err = t.remove(ctx, err); err != nil {
		return err
	}
	t.mu.Lock()
	t.results = append(t.results, was)
	t.mu.Unlock()
	return fault.Prefix("journal", t.Journal.Put(t.key(), was))
}

// done asks the journal: the scratch VM is deleted, so the world can't tell.
func (t *trial) done(context.Context) (string, error) {
	var was Rehearsed
	found, err := t.Journal.Get(t.key(), &was)
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	if !found || was.Medium != t.Medium || was.Firmware != t.Firmware {
		return "", nil
	}
	return was.String(), nil
}

func (t *trial) key() string {
	sum := sha256.Sum256([]byte(t.Host + "/" + t.ID))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// scratchTimeout limits each part that an interruption does not cancel: the wait for the tasks of a
// scratch VM, and its deletion.
const scratchTimeout = 2 * time.Minute

func (t *trial) path() string { return "roll/rehearse/" + t.Host + "/" + t.ID }

// wait waits until look succeeds, and shows what it sees.
func (t *trial) wait(ctx context.Context, name string, look wait.Look) error {
	return t.Timing.Await(ctx, wait.For{Name: name, Timeout: t.Timing.Boot, Seen: func(seen string) { t.say(name + ": " + seen) }}, look)
}
