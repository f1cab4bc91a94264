package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"

	"github.com/recast-sh/recast/cluster/observe"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// Provenance traces one running node back to a lock. With a puller it also compares the
// node's files with the images of the build that it claims. It needs no lock: without one,
// links are unknown, which is no error.
func Provenance(ctx context.Context, p Project, m Machines, r images.Puller, node string, say func(string)) (observe.Provenance, error) {
	i := slices.IndexFunc(p.Config.Nodes, func(n config.Node) bool { return n.Name == node })
	if i < 0 {
		return observe.Provenance{}, fault.WithHint(fault.Configf("no node %q", node), "the nodes are: %s", strings.Join(nodeNames(p.Config), ", "))
	}
	present, past, err := locksAtHand(p)
	if err != nil {
		return observe.Provenance{}, err
	}
	found, err := findNode(ctx, p, m, p.Wanted(present)[i])
	if err != nil {
		return observe.Provenance{}, err
	}
	t := observe.Trail{Describe: describe}
	t.Known = append(knownBuilds("recast.lock", true, present), past...)
	for k, b := range t.Known {
		if b.Present && b.Schematic == p.Config.Nodes[i].Schematic {
			t.Wanted = &t.Known[k]
		}
	}
	if t.Claims, err = m.Claims.Claims(ctx, found.Addr, found.VM.UUID()); err != nil {
		return observe.Provenance{}, fmt.Errorf("read the image details of %s: %w", node, err)
	}
	if b := t.Claimant(); r != nil && b != nil {
		target := observe.FileTarget{Node: node, Addr: found.Addr, UUID: found.VM.UUID()}
		if t.Files, err = compareOne(ctx, m, r, target, *b, say); err != nil {
			t.Unread = err.Error()
		}
	}
	out := observe.Trace(t)
	out.Node, out.VM, out.Address = node, found.VM.String(), found.Addr
	return out, ctx.Err()
}

// compareOne compares the files of one node with those of a build.
func compareOne(
	ctx context.Context, m Machines, r images.Puller, t observe.FileTarget, b observe.KnownBuild, say func(string),
) (*observe.FileCheck, error) {
	if err := newLockedFiles(r, say).want(ctx, &t, b.Build.Arch, b.Build); err != nil {
		return nil, err
	}
	checks, errs := observe.CompareFiles(ctx, m.Files, []observe.FileTarget{t}, func(node, text string) { say(node + ": " + text) })
	if errs[0] != nil {
		return nil, errs[0]
	}
	return &checks[0], nil
}

// locksAtHand reads recast.lock, which need not exist or match the configuration, and the
// builds of past locks.
func locksAtHand(p Project) (present schematics.Lock, past []observe.KnownBuild, err error) {
	present, err = schematics.ReadLock(p.LockFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return present, nil, err
	}
	h, err := schematics.ReadHistory(p.Locks().Dir)
	if err != nil {
		return present, nil, err
	}
	for _, lock := range h.Locks() {
		past = append(past, knownBuilds(filepath.Join(".recast", "locks", lock.Key()+".lock"), false, lock)...)
	}
	for _, lock := range p.Locks().Shared() {
		for _, b := range knownBuilds(SharedRuns(p), false, lock) {
			b.Shared = true
			past = append(past, b)
		}
	}
	return present, past, nil
}

// findNode returns the VM of one node, and the address of its machine.
func findNode(ctx context.Context, p Project, m Machines, w cluster.Wanted) (observe.Found, error) {
	o, err := observation(ctx, p, Sources(p, m), []cluster.Wanted{w}, "", "")
	if err != nil {
		return observe.Found{}, err
	}
	f := o.Found[0]
	switch {
	case f.Absent != nil:
		return f, observe.NotThereYet(w.Name)
	case f.VM == nil:
		return f, fault.WithHint(fault.ParkedHalf.Errorf("node %s has no VM now: its replacement is not finished", w.Name), "recast status")
	case !f.Addr.IsValid():
		return f, fmt.Errorf("node %s: %w", w.Name, observe.NoAddress(w.Name))
	}
	return f, nil
}

// describe summarizes a schematic that is not ours. It leaves out the values of kernel
// arguments and parse errors, since both may contain a token.
func describe(text string) (observe.Described, bool) {
	s, err := schematics.Parse("schematic", []byte(text))
	if err != nil {
		return observe.Described{}, false
	}
	d := observe.Described{Extensions: s.Extensions()}
	for _, arg := range (schematics.Locked{File: "schematic", Schematic: text}).KernelArgs() {
		name, _, _ := strings.Cut(arg, "=")
		d.Args = append(d.Args, name)
	}
	return d, true
}
