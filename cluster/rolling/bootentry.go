package rolling

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// NoteEntry notes on its Node which boot entry its EFI variables still name, if its system disk has
// another: one that was made from a disk image, or is back after a replacement. The variables outlive the
// disk and only an installer writes them. The node has just booted by its firmware: had the disk an entry
// of that name, this would have been booted (config_select_default_entry in systemd's boot.c).
func NoteEntry(n *Node) step.Step {
	look := func(ctx context.Context) (was, is cluster.Booted, err error) {
		m, err := n.Talos.Booted(ctx, n.Plan.Addr)
		if err != nil {
			return was, is, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
		}
		k, err := n.KubeNode(ctx)
		if m.NextBoot != m.BootEntry && m.BootEntry != "" {
			is.Gone = m.NextBoot
		}
		return k.Booted, is, err
	}
	return step.Step{
		ID: "note-entry", Title: "note the boot entry that an earlier disk has left",
		Skip: func(ctx context.Context) (string, error) {
			was, is, err := look(ctx)
			if err != nil || was != is {
				return "", err
			}
			return words.OrNone(is.Gone), nil
		},
		Do: func(ctx context.Context) error {
			_, is, err := look(ctx)
			if err != nil {
				return err
			}
			return n.Kube.SetBooted(ctx, n.Plan.Node, is)
		},
	}
}
