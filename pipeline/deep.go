package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/bootimage"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// DeepDrift is Drift that also reads the files of every locked extension back from each
// node, since labels can be wrong. It calls say with a line for each action.
func DeepDrift(ctx context.Context, p Project, m Machines, r images.Puller, say func(string)) (DriftResult, error) {
	lock, err := p.Lock()
	if err != nil {
		return DriftResult{}, err
	}
	res, found, err := drift(ctx, p, m, lock)
	if err != nil {
		return DriftResult{}, err
	}
	locked := newLockedFiles(r, say)
	var targets []observe.FileTarget
	var nodes []int // of each target, in res.Nodes
	for i, f := range found {
		if f.Machine == nil {
			continue // it could not be read; the result says so
		}
		t := observe.FileTarget{Node: f.Name, Addr: f.Addr, UUID: f.Machine.UUID}
		if err := locked.want(ctx, &t, lock.Arch, build(lock, p.Config.Nodes[i].Schematic)); err != nil {
			res.Nodes[i] = res.Nodes[i].WithFiles(observe.FileCheck{}, err)
			continue // the comparison of its labels is still a result
		}
		targets, nodes = append(targets, t), append(nodes, i)
	}
	checks, errs := observe.CompareFiles(ctx, m.Files, targets, func(node, text string) { say(node + ": " + text) })
	for k, i := range nodes {
		res.Nodes[i] = res.Nodes[i].WithFiles(checks[k], errs[k])
	}
	res.count()
	return res, ctx.Err()
}

// lockedFiles reads the files of locked extension images, each image once.
type lockedFiles struct {
	puller images.Puller
	say    func(string)
	read   map[string]lockedRead // by reference and architecture
}

// lockedRead is the result of reading an image.
type lockedRead struct {
	files map[string]observe.LockedFile
	err   error
}

func newLockedFiles(r images.Puller, say func(string)) lockedFiles {
	return lockedFiles{puller: r, say: say, read: map[string]lockedRead{}}
}

// want adds the files of a build to a target, to compare. Its error becomes part of a
// result, so the text includes the hints.
func (l lockedFiles) want(ctx context.Context, t *observe.FileTarget, arch string, b cluster.Build) error {
	t.EmbedsConfig = b.EmbedsConfig
	for _, e := range b.Extensions {
		list, err := l.files(ctx, arch, e)
		if err != nil {
			return fmt.Errorf("read the locked image of extension %s: %w%s", e.Name, err, inBrackets(fault.Hints(err)))
		}
		t.Content = append(t.Content, observe.LockedFiles{Extension: e, Files: list})
	}
	return nil
}

func inBrackets(hints []string) string {
	if len(hints) == 0 {
		return ""
	}
	return " (" + strings.Join(hints, "; ") + ")"
}

func (l lockedFiles) files(ctx context.Context, arch string, e cluster.LockedExtension) (map[string]observe.LockedFile, error) {
	ref := e.Ref + "@" + e.Digest
	read, done := l.read[ref+" "+arch]
	if !done {
		l.say("reading the locked image of extension " + e.Name + " " + e.Version)
		read.files, read.err = l.extract(ctx, ref, arch)
		l.read[ref+" "+arch] = read
	}
	return read.files, read.err
}

func (l lockedFiles) extract(ctx context.Context, ref, arch string) (_ map[string]observe.LockedFile, err error) {
	body, err := l.puller.Extract(ctx, ref, arch)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	extension, err := bootimage.ReadExtension(body)
	if err != nil {
		return nil, err
	}
	// The digests are checked only when the end is reached.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return nil, err
	}
	list := map[string]observe.LockedFile{}
	for name, f := range extension.Files {
		list[name] = observe.LockedFile{Mode: f.Mode, SizeBytes: f.SizeBytes, SHA256: f.SHA256, Link: f.Link, HardLink: f.HardLink}
	}
	return list, nil
}

// knownBuilds returns all builds of a lock.
func knownBuilds(file string, present bool, lock schematics.Lock) []observe.KnownBuild {
	var out []observe.KnownBuild
	for _, name := range lock.Names() {
		e := lock.Schematics[name]
		out = append(out, observe.KnownBuild{
			Lock: file, Present: present, Schematic: name, File: e.File, Build: build(lock, name), ISOSHA256: e.ISO.SHA256, Signer: e.Signer,
		})
	}
	return out
}
