package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// bootEntryStep makes sure that a restored system disk boots the same entry as before. A disk that was upgraded in
// place has two entries. The EFI variable LoaderEntryDefault, not the disk, says which one the boot loader takes: the
// replacement's install has set it to its own entry, and the older entry on this disk may have the same name.
func (n *node) bootEntryStep(entry func(parking.Memory) string) step.Step {
	look := func(ctx context.Context) (m cluster.Machine, want string, err error) {
		mem, err := n.Memory(ctx)
		if err != nil {
			return m, "", err
		}
		m, err = cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		return m, entry(mem), err
	}
	waited := false
	return step.Step{
		ID: "boot-entry", Code: fault.NoBoot, Title: "see that it boots the entry that it booted before", Risk: step.Disruptive,
		Skip: func(ctx context.Context) (string, error) {
			m, want, err := look(ctx)
			switch {
			case waited && err != nil:
				return "", err
			case want == "":
				return "it is not known to have more than one", nil
			case err == nil && m.FromISO: // the ISO's entry may have the same name
				return "", nil
			case err == nil && m.UUID == n.Plan.UUID && m.BootEntry == want:
				return "it booted " + want, nil
			case err == nil && m.UUID == n.Plan.UUID && m.Stage == "running" && m.BootEntry == "":
				return "it does not say which entry it booted; whether that is healthy is looked at next", nil
			}
			return "", nil //nolint:nilerr // not yet: Do waits and says why
		},
		Do: func(ctx context.Context) error {
			waited = true
			var m cluster.Machine
			var want string
			await := func(what string, is func() bool) error {
				return n.Wait(ctx, "boot-entry", n.Plan.Node+" "+what, n.Timing.Join, func(ctx context.Context) (bool, string, error) {
					var err error
					m, want, err = look(ctx)
					if err == nil && m.FromISO {
						return false, "it runs from its boot ISO, not from its system disk", nil
					}
					return err == nil && m.UUID == n.Plan.UUID && is(), "stage " + words.OrNone(m.Stage), n.stillOn(ctx, err)
				})
			}
			err := await("up", func() bool { return m.Stage == "running" || m.BootEntry == want })
			if err != nil || m.BootEntry == want || m.BootEntry == "" {
				return err
			}
			n.Tell("boot-entry", fmt.Sprintf("it booted %s, not %s: asking it to boot its other entry", m.BootEntry, want))
			lost := n.Talos.Rollback(ctx, n.Plan.Addr, n.Plan.UUID)
			if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
				return fmt.Errorf("have %s boot %s, not %s: %w", n.Plan.Node, want, m.BootEntry, lost)
			}
			return cluster.Unanswered(lost, await("up with "+want, func() bool { return m.BootEntry == want }))
		},
	}
}
