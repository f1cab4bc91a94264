package rehearse

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// trial is one trial in progress.
type trial struct {
	planning.Trial
	*Rehearser

	vmid cluster.VMID // the one that was requested; 0: none
	uuid string
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
	if t.vmid != 0 {
		after := context.WithoutCancel(ctx)
		if errors.Is(err, cluster.ErrLostAnswer) || ctx.Err() != nil { // Proxmox may be about to create or start it
			err = errors.Join(err, t.settle(after))
		}
		after, cancel := context.WithTimeout(after, scratchTimeout)
		defer cancel()
		err = errors.Join(err, t.pruner().delete(after, t.vmid, t.uuid))
	}
	if err != nil {
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

// settle waits for the tasks of the scratch VM only. Other tasks of ours may take longer than a
// user waits after Ctrl-C.
func (t *trial) settle(ctx context.Context) error {
	w := wait.For{
		Name: fmt.Sprintf("tasks of scratch VM %d to end", t.vmid), Every: t.Timing.Poll, Timeout: scratchTimeout,
		Seen: func(seen string) { t.say(seen) },
	}
	err := cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) {
		return t.Proxmox.OwnTasksOf(ctx, t.Host, t.vmid)
	})
	return fault.WithHint(err, "recast prune waits for them, and deletes the scratch VM if they leave one")
}

// scratchTimeout limits each part that an interruption does not cancel: the wait for the tasks of a
// scratch VM, and its deletion.
const scratchTimeout = 2 * time.Minute

func (t *trial) say(text string) { t.Say("roll/rehearse/"+t.Host+"/"+t.ID, text) }

// wait waits until look succeeds, and shows what it sees.
func (t *trial) wait(ctx context.Context, name string, look wait.Look) error {
	return t.Timing.Await(ctx, wait.For{Name: name, Timeout: t.Timing.Boot, Seen: func(seen string) { t.say(name + ": " + seen) }}, look)
}
