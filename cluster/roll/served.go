package roll

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// served waits for pods with volumes on iSCSI or NVMe-oF: a node with another system disk has other names, which servers
// of such volumes may not let in.
type served struct {
	*rolling.Node
	Files    cluster.FileReader
	LeftOpen func(error) error // as healing.LeftOpen
}

const (
	servedBeforeID = "await-served"
	servedAfterID  = "await-served-again"
	servedJournal  = "unscheduled" // key of the pods that no node had before the node went
)

// Before returns the step before anything is done to the node: on no node does a pod wait for such a volume.
func (n served) Before() []step.Step {
	if len(n.Plan.Initiators) == 0 || n.Plan.Resume {
		return nil
	}
	title := "see that pods have their volumes on " + strings.Join(n.Plan.Initiators, " and ")
	return []step.Step{{ID: servedBeforeID, Code: fault.GateClosed, Title: title, Yields: true, Do: n.awaitBefore}}
}

// After returns the step that ends the node's roll: pods have such volumes with its new names.
func (n served) After() []step.Step {
	if len(n.Plan.Initiators) == 0 {
		return nil
	}
	title := fmt.Sprintf("wait until pods have their volumes on %s with %s back", strings.Join(n.Plan.Initiators, " and "), n.Plan.Node)
	return []step.Step{{ID: servedAfterID, Code: fault.GateClosed, Title: title, Yields: true, Do: n.awaitAfter}}
}

func (n served) awaitBefore(ctx context.Context) error {
	err := n.await(ctx, servedBeforeID, func(users []cluster.ServedUser) (string, error) {
		var unscheduled []string
		for _, u := range users {
			switch {
			case u.Runs:
			case u.Node != "":
				return n.waits(ctx, u), nil
			default:
				unscheduled = append(unscheduled, u.Pod)
			}
		}
		return "", n.Journal.Put(n.Key(servedJournal), unscheduled)
	})
	if err != nil && ctx.Err() == nil {
		return fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once these pods run, or are deleted, run the same command again", n.Plan.Node)
	}
	return err
}

func (n served) awaitAfter(ctx context.Context) error {
	var before []string
	if _, err := n.Journal.Get(n.Key(servedJournal), &before); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	err := n.await(ctx, servedAfterID, func(users []cluster.ServedUser) (string, error) {
		for _, u := range users {
			if !u.Runs && (u.Node != "" || !slices.Contains(before, u.Pod)) {
				return n.waits(ctx, u), nil
			}
		}
		return "", nil
	})
	if err != nil && ctx.Err() == nil {
		err = fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
			"let the new name in at the server of the volumes (its list of hosts or initiators), and remove the old one; once these pods run, recast roll continues with the next node; where that takes longer, raise roll.timeouts.storage")
		return n.LeftOpen(err)
	}
	return err
}

func (n served) await(ctx context.Context, id string, lacks func([]cluster.ServedUser) (string, error)) error {
	name := "pods with volumes on " + strings.Join(n.Plan.Initiators, " and ") + " run"
	poll := n.Timing.Poll // of all pods: a person at the server of the volumes may take as long as Heal
	w := wait.For{Name: name, Timeout: n.Timing.Heal, First: poll, Every: 10 * poll}
	return n.Watch(ctx, id, w, func(ctx context.Context) (bool, string, error) {
		users, err := n.Kube.ServedUsers(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		what, err := lacks(users)
		if err != nil {
			return false, "", wait.Stop(fmt.Errorf("journal: %w", err))
		}
		return what == "", what, nil
	})
}

// waits says which pod waits for which volume, and by which name its node asks for it.
func (n served) waits(ctx context.Context, u cluster.ServedUser) string {
	text := fmt.Sprintf("pod %s does not run yet, with %s on %s", u.Pod, u.Volume, u.Access)
	if u.Node == "" {
		return text + ", and is on no node"
	}
	k, err := n.Kube.Node(ctx, u.Node)
	if err != nil {
		return text + ", on " + u.Node
	}
	text += fmt.Sprintf(", on %s, whose name is %s", u.Node, cmp.Or(cluster.InitiatorName(u.Access, k.MachineID), "unknown"))
	if was := n.Plan.Found.Node; u.Node == n.Plan.Node && was != nil && was.MachineID != k.MachineID {
		text += " (before: " + cmp.Or(cluster.InitiatorName(u.Access, was.MachineID), "unknown") + ")"
	}
	if u.Trouble != "" {
		text += "; it " + u.Trouble
	}
	return text
}

// Tell shows the names by which servers of volumes know the node now: those in its files, else those that follow from
// its machine-id.
func (n served) Tell(ctx context.Context, id string) {
	if len(n.Plan.Initiators) == 0 {
		return
	}
	k, _ := n.Kube.Node(ctx, n.Plan.Node) // without it the name is unknown, which is shown
	for _, protocol := range n.Plan.Initiators {
		name := cmp.Or(n.named(ctx, protocol), cluster.InitiatorName(protocol, k.MachineID), "unknown: see talosctl -n "+n.Plan.Addr.String()+" read "+cluster.InitiatorFile(protocol))
		n.Node.Tell(id, "its name for "+protocol+" is now "+name)
	}
}

// named reads a name from the machine; "" if that is impossible, for example with the role os:reader.
func (n served) named(ctx context.Context, protocol string) (name string) {
	if n.Files == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	at := cluster.InitiatorFile(protocol)
	_ = n.Files.Files(ctx, n.Plan.Addr, n.Plan.UUID, func(ctx context.Context, files cluster.MachineFiles) error { // the name is then derived
		return readName(ctx, files, at, &name)
	})
	return name
}

const fileTimeout = 10 * time.Second

func readName(ctx context.Context, files cluster.MachineFiles, at string, name *string) error {
	var size int64
	dir := path.Dir(at)
	err := files.List(ctx, dir, false, func(f cluster.MachineFile) error {
		if f.Path == at {
			size = f.SizeBytes
		}
		return nil
	})
	if err != nil || size == 0 || size > maxName {
		return err
	}
	var text strings.Builder
	if err := files.Read(ctx, at, size, &text); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "InitiatorName="))
		if strings.HasPrefix(line, "iqn.") || strings.HasPrefix(line, "nqn.") {
			*name = line
		}
	}
	return nil
}

// maxName bounds a file with a name.
const maxName = 4 << 10
