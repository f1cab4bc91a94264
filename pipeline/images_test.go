package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

type everyRegistry interface {
	images.Registry
	images.Copier
	images.Puller
	images.Archives
	schematics.ExtensionImages
}

// published is the content of registry and factory: the agent as an official extension
// and, by tag, an extension of the user's own.
type published struct{ agent, frr string } // digests

type lockFactory struct {
	images.Factory
	*published
}

type lockRegistry struct {
	everyRegistry
	*published
}

func (p *published) list() []schematics.OfficialExtension {
	return []schematics.OfficialExtension{{
		Name: "siderolabs/qemu-guest-agent", Version: "1.0", Ref: "ghcr.io/siderolabs/qemu-guest-agent", Digest: p.agent,
	}}
}

func (f lockFactory) Extensions(context.Context, string) ([]schematics.OfficialExtension, error) {
	return f.list(), nil
}

func (lockFactory) Broken(context.Context) ([]string, error) { return nil, nil }

func (p *published) Official(context.Context, string) ([]schematics.OfficialExtension, error) {
	return p.list(), nil
}

func (r lockRegistry) Digest(_ context.Context, ref string) (string, bool, error) {
	return r.frr, ref == "ghcr.io/acme/frr:1.7", nil
}

func (lockRegistry) Describe(_ context.Context, ref, arch string) (schematics.ExtensionImage, error) {
	repository, _, _ := strings.Cut(ref, "@")
	return schematics.ExtensionImage{Architectures: []string{arch}, Name: path.Base(repository), Version: "1.0"}, nil
}

func (p *published) images() Images {
	return Images{Factory: lockFactory{published: p}, Registry: lockRegistry{published: p}, Catalog: p}
}

func hex64(c string) string { return "sha256:" + strings.Repeat(c, 64) }

const lockConfig = `version: 1
cluster: home
talos: {version: v1.13.9}
images:
  mirror: ghcr.io/acme/talos
  iso: {storage: [isos]}
schematics:
  default: base.yaml
  bgp: {file: base.yaml, extensions: ["ghcr.io/acme/frr:1.7"]}
  spare: plain.yaml
proxmox: {endpoints: ["https://pve1:8006"], vmids: 9000-9099}
nodes:
  - {name: cp1, schematic: default}
  - {name: wk1, schematic: bgp}
  - {name: wk2, schematic: bgp}
`

// lockProject is a directory with recast.yaml and schematics, without a lock.
func lockProject(t *testing.T) Project {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"recast.yaml": lockConfig,
		"base.yaml":   "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent]}}\n",
		"plain.yaml":  "customization: {}\n",
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	c := must.Get(config.Load(filepath.Join(dir, "recast.yaml"), config.Options{}))(t)
	return Project{Config: c}
}

// staleNodes lists, for each changed schematic, which nodes run it and why it changed.
func staleNodes(res LockResult) map[string][]string {
	m := map[string][]string{}
	for _, c := range res.Changes {
		m[c.Schematic] = append(append([]string{}, c.Nodes...), c.Reasons...)
	}
	return m
}

// TestLock: digests stay until --update, which reports what changed and which nodes are
// stale now; --check writes nothing.
func TestLock(t *testing.T) {
	t.Parallel()
	p := lockProject(t)
	world := &published{agent: hex64("a"), frr: hex64("c")}
	lock := func(o LockOptions) LockResult {
		t.Helper()
		return must.Get(Lock(t.Context(), p, world.images(), o))(t)
	}
	res := lock(LockOptions{Check: true})
	must.Equal(t, "--check without a lock: differs, written", [2]bool{true, false}, [2]bool{res.Differs, res.Written})
	must.FailIs(t, must.Err(schematics.ReadLock(p.LockFile())), fs.ErrNotExist)
	res = lock(LockOptions{})
	added := map[string][]string{"default": {"cp1", "added"}, "bgp": {"wk1", "wk2", "added"}, "spare": {"added"}}
	must.Equal(t, "the first lock", added, staleNodes(res))
	must.Equal(t, "the first lock: written", true, res.Written)
	must.Pass(t, must.Err(p.Lock()))

	world.frr, world.agent = hex64("d"), hex64("b")
	if res := lock(LockOptions{}); res.Differs || res.Written || len(res.Changes) > 0 {
		t.Errorf("nobody asked for an update: %+v", res.Changes)
	}
	agent := "extension qemu-guest-agent 1.0: " + hex64("a") + " → " + hex64("b")
	want := map[string][]string{"default": {"cp1", agent}, "bgp": {"wk1", "wk2", "extension frr 1.0: " + hex64("c") + " → " + hex64("d"), agent}}
	for name, o := range map[string]LockOptions{"check": {Check: true}, "update": {Update: true}} {
		res := must.Get(Lock(t.Context(), lockedAs(t, p), world.images(), o))(t)
		must.Equal(t, name, want, staleNodes(res))
		must.Equal(t, name+": written, differs", [2]bool{o.Update, true}, [2]bool{res.Written, res.Differs})
	}
}

// lockedAs is a project with a copy of p's files.
func lockedAs(t *testing.T, p Project) Project {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, os.DirFS(p.Config.Dir)))
	c := must.Get(config.Load(filepath.Join(dir, "recast.yaml"), config.Options{}))(t)
	return Project{Config: c}
}

// TestLockRebuild: the locked schematic gets another name, and nothing else changes.
func TestLockRebuild(t *testing.T) {
	t.Parallel()
	p := lockProject(t)
	world := &published{agent: hex64("a"), frr: hex64("c")}
	must.Get(Lock(t.Context(), p, world.images(), LockOptions{}))(t)
	world.agent, world.frr = hex64("b"), hex64("d")
	_, err := Lock(t.Context(), p, world.images(), LockOptions{Rebuild: []string{"default", "bgb"}})
	if fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), `no schematic "bgb" to rebuild`) ||
		cmp.Diff([]string{"the schematics are: bgp, default, spare"}, fault.Hints(err)) != "" {
		t.Errorf("a schematic that nobody has: %v %q", err, fault.Hints(err))
	}
	res := must.Get(Lock(t.Context(), p, world.images(), LockOptions{Rebuild: []string{"default"}}))(t)
	must.Equal(t, "stale", map[string][]string{"default": {"cp1", "rebuild 0 → 1"}}, staleNodes(res))
	must.Equal(t, "written", true, res.Written)
	must.Equal(t, "rebuild in the lock", 1, must.Get(p.Lock())(t).Schematics["default"].Rebuild)
	world.agent, world.frr = hex64("a"), hex64("c")
	must.Equal(t, "--check of a rebuilt lock: differs", false, must.Get(Lock(t.Context(), p, world.images(), LockOptions{Check: true}))(t).Differs)
}

// TestLockDiffersInNoBuild: a change that does not affect an image is still written and checked.
func TestLockDiffersInNoBuild(t *testing.T) {
	t.Parallel()
	p := lockProject(t)
	world := &published{agent: hex64("a"), frr: hex64("c")}
	must.Get(Lock(t.Context(), p, world.images(), LockOptions{}))(t)
	s := p.Config.Schematics["bgp"]
	s.Extensions = []config.ImageRef{{Repository: "ghcr.io/acme/frr", Digest: hex64("c")}}
	p.Config.Schematics["bgp"] = s
	res, err := Lock(t.Context(), p, world.images(), LockOptions{Check: true})
	if err != nil || !res.Differs || len(res.Changes) > 0 {
		t.Errorf("a reference by digest instead of tag: differs %t, changes %v, %v", res.Differs, res.Changes, err)
	}
	must.FailAs(t, must.Err(p.Lock()), fault.Config, "schematic bgp has changed since it was locked")
}

// TestBuildLeavesANewerLockAlone: if the lock is updated while images are built, the
// results for the earlier lock do not undo the update.
func TestBuildLeavesANewerLockAlone(t *testing.T) {
	t.Parallel()
	p := lockProject(t)
	world := &published{agent: hex64("a"), frr: hex64("c")}
	first := must.Get(Lock(t.Context(), p, world.images(), LockOptions{}))(t)
	save := saver(p.LockFile(), first.Lock)
	record := func(l schematics.Lock, installer string) schematics.Lock {
		l = l.Clone()
		e := l.Schematics["default"]
		e.Installer = "ghcr.io/acme/talos@" + installer
		l.Schematics["default"] = e
		return l
	}
	for _, digest := range []string{hex64("1"), hex64("2")} { // one record after the other
		must.Do(t, save(record(first.Lock, digest)))
	}
	world.agent = hex64("b")
	updated := must.Get(Lock(t.Context(), p, world.images(), LockOptions{Update: true}))(t)
	must.Equal(t, "written", true, updated.Written)
	must.FailAs(t, save(record(first.Lock, hex64("3"))), fault.Refused)
	got := must.Get(schematics.ReadLock(p.LockFile()))(t)
	must.Equal(t, "the update is undone", updated.Lock.Key(), got.Key())
}

// TestLockPlacesErrors: a problem with a reference is reported with its position in recast.yaml.
func TestLockPlacesErrors(t *testing.T) {
	t.Parallel()
	p := lockProject(t)
	s := p.Config.Schematics["bgp"]
	s.Extensions[0].Tag = "1.8"
	_, err := Lock(t.Context(), p, (&published{agent: hex64("a")}).images(), LockOptions{})
	want := filepath.Join(p.Config.Dir, "recast.yaml") + ":9:39: schematics.bgp.extensions[0]: the registry has no ghcr.io/acme/frr:1.8"
	must.Equal(t, "error", want, fmt.Sprint(err))
}

// storehouse is a Proxmox cluster of which only the VMs are read.
type storehouse struct {
	datacentre
	cluster.Access
	images.Store
}

func TestISOHosts(t *testing.T) {
	t.Parallel()
	vm := func(id cluster.VMID, host string) cluster.VM {
		return cluster.VM{ID: id, Host: host, Config: map[string]string{"smbios1": fmt.Sprintf("uuid=u-%d", id)}}
	}
	open := parkingVM(t, parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b", VMID: 111, UUID: "u-111", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}, nil)
	done := parkingVM(t, parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b", VMID: 111, UUID: "u-111"}, nil)
	wk1, wk2 := config.Node{Name: "wk1", Schematic: "a", VMID: 111}, config.Node{Name: "wk2", Schematic: "b", VMID: 112}
	unnumbered := config.Node{Name: "wk2", Schematic: "a"}
	away := &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve9", Why: "is offline"}}}
	type example struct {
		nodes   []config.Node
		proxmox datacentre
		kube    map[string]string // name → UUID; nil: it can't be asked
		want    map[string][]string
		err     string
	}
	cases := map[string]example{
		"by VMID, without Kubernetes": {
			nodes: []config.Node{wk1, wk2}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2"), vm(113, "pve3")}},
			want: map[string][]string{"a": {"pve1"}, "b": {"pve2"}},
		},
		"by UUID where there is no VMID": {
			nodes: []config.Node{wk1, unnumbered}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2")}},
			kube: map[string]string{"wk1": "u-9", "wk2": "u-112"}, want: map[string][]string{"a": {"pve1", "pve2"}},
		},
		"Kubernetes is away": {
			nodes: []config.Node{wk1, unnumbered}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2")}},
			err: "find the VMs of nodes without a VMID: no route to host",
		},
		"deleted by an unfinished replacement": {
			nodes: []config.Node{wk1}, proxmox: datacentre{vms: []cluster.VM{open}}, want: map[string][]string{"a": {"pve1"}},
		},
		"a finished one says nothing": {
			nodes: []config.Node{wk1}, proxmox: datacentre{vms: []cluster.VM{done}}, err: "node wk1: Proxmox shows no VM 111",
		},
		"on a host that is away": {
			nodes: []config.Node{wk1, wk2}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1")}, err: away}, want: map[string][]string{"a": {"pve1"}},
		},
		"to be made": {
			nodes: []config.Node{wk1, {Name: "wk3", Schematic: "a", Host: "pve2"}}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1")}},
			want: map[string][]string{"a": {"pve1", "pve2"}},
		},
		"all that is not there": {
			nodes: []config.Node{wk1, unnumbered, {Name: "wk3"}}, kube: map[string]string{"wk2": "u-112"},
			err: "node wk1: Proxmox shows no VM 111\nnode wk2: Proxmox shows no VM with its SMBIOS UUID u-112\nnode wk3: Kubernetes has no node of that name",
		},
		"Proxmox is away": {nodes: []config.Node{wk1}, proxmox: datacentre{err: errors.New("595 Connection refused")}, err: "read Proxmox: 595 Connection refused"},
	}
	must.Each(t, cases, func(t *testing.T, tc example) {
		p := Project{Config: &config.Config{Cluster: "c1", Nodes: tc.nodes}}
		got, err := isoHosts(t.Context(), p, PublishSources{Proxmox: storehouse{datacentre: tc.proxmox}, Nodes: func(context.Context) (nodes []cluster.KubeNode, err error) {
			if tc.kube == nil {
				return nil, errors.New("no route to host")
			}
			for name, uuid := range tc.kube {
				nodes = append(nodes, cluster.KubeNode{Name: name, UUID: uuid})
			}
			return nodes, nil
		}})
		if err == nil && tc.err != "" || err != nil && err.Error() != tc.err {
			t.Fatalf("error is %v, want %q", err, tc.err)
		}
		if err == nil {
			must.Equal(t, "hosts", tc.want, got)
		}
	})
}

// mirrorShelf is a repository of installers without parts: tag → digest.
type mirrorShelf map[string]string

func (m mirrorShelf) Tags(context.Context, string) ([]string, error) {
	return slices.Collect(maps.Keys(m)), nil
}

func (m mirrorShelf) Named(_ context.Context, tag string) (images.Named, bool, error) {
	digest, found := m[strings.TrimPrefix(tag, "r.acme/talos:")]
	return images.Named{Digest: digest}, found, nil
}

func (m mirrorShelf) Built(context.Context, string) (time.Time, error) {
	return time.Now().Add(-1000 * time.Hour), nil
}

func (m mirrorShelf) Referrers(context.Context, string) ([]string, error) { return nil, nil }

func (m mirrorShelf) Delete(_ context.Context, ref string) error {
	maps.DeleteFunc(m, func(_, digest string) bool { return "r.acme/talos@"+digest == ref })
	return nil
}

func digestOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// mirrorProject is pruneProject with a mirror that has an installer of each lock and
// build, and one that a lock names under a tag of another build.
func mirrorProject(t *testing.T) (Project, *pruneSite, mirrorShelf) {
	t.Helper()
	p, s := pruneProject(t)
	p.Config.Images.Mirror = "r.acme/talos"
	lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
	e := lock.Schematics["default"]
	e.Installer = "r.acme/talos@" + digestOf("1")
	lock.Schematics["default"] = e
	must.Do(t, schematics.WriteLock(p.LockFile(), lock))
	before, _, err := schematics.Previous(p.Locks().Dir, lock)
	must.Do(t, err)
	tag := func(build string) string { return "v1.13.9-" + schematics.Short(build) }
	return p, s, mirrorShelf{
		images.TagOf(lock, e): digestOf("1"), images.TagOf(before, before.Schematics["default"]): digestOf("2"),
		tag(goneBuild): digestOf("3"), tag(openBuild): digestOf("4"), tag(runBuild): digestOf("5"),
		tag(strings.Repeat("d", 64)): digestOf("1"), "latest": digestOf("3"),
	}
}

func (s *pruneSite) pruneMirror(t *testing.T, p Project, shelf mirrorShelf, confirm bool) (PruneReport, error) {
	t.Helper()
	return s.pruneAs(t, p, confirm, PruneOptions{Only: PruneMirror, Mirror: shelf})
}

func TestPruneMirror(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, s, shelf := mirrorProject(t)
		isos := len(s.isos)
		rep := must.Get(s.pruneMirror(t, p, shelf, true))(t)
		lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
		want := map[string]string{
			images.TagOf(lock, lock.Schematics["default"]): "recast.lock has it",
			"v1.13.9-dddddddddddd":                         "recast.lock has it",
			"v1.13.9-aaaaaaaaaaaa":                         "latest names the same image",
			"v1.13.9-bbbbbbbbbbbb":                         "removed",
			"v1.13.9-cccccccccccc":                         `VM 101 "wk1" on pve1 was created from it`,
		}
		got := map[string]string{}
		for _, v := range rep.Mirror {
			got[v.Tag] = strings.Join(v.Keep, "; ")
			if v.Removed {
				got[v.Tag] = "removed"
			}
			if strings.HasPrefix(v.Tag, "v1.13.8-") {
				want[v.Tag] = "the previous lock has it: the way back"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) != 6 {
			t.Errorf("%d verdicts (-want +got):\n%s", len(want), diff)
		}
		if diff := cmp.Diff([]string{"claim", "ask", "give back"}, s.changes); diff != "" || len(s.isos) != isos || len(shelf) != 6 {
			t.Errorf("%d ISOs, %d tags, changes (-want +got):\n%s", len(s.isos), len(shelf), diff)
		}
	})
}

func TestPruneLeavesTheMirrorAlone(t *testing.T) {
	t.Parallel()
	type row struct {
		prune func(*testing.T, *pruneSite, Project, mirrorShelf) (PruneReport, error)
		fails string
		kind  fault.Kind
	}
	must.Bubbles(t, map[string]row{
		"not asked for": {func(t *testing.T, s *pruneSite, p Project, _ mirrorShelf) (PruneReport, error) {
			return s.prune(t, p, true)
		}, "", 0},
		"not confirmed": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			return s.pruneMirror(t, p, m, false)
		}, "not confirmed", fault.Interrupted},
		"there is none": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			p.Config.Images.Mirror = ""
			return s.pruneMirror(t, p, m, true)
		}, "images.mirror is not set", fault.Config},
		"half a view": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			s.blind = fault.Refusedf("sees half")
			return s.pruneMirror(t, p, m, true)
		}, "sees half", fault.Refused},
		"no right to see VMs": {func(t *testing.T, s *pruneSite, p Project, m mirrorShelf) (PruneReport, error) {
			s.lacks = "VM.Audit"
			return s.pruneMirror(t, p, m, true)
		}, "VM.Audit", fault.Refused},
	}, func(t *testing.T, tc row) {
		p, s, shelf := mirrorProject(t)
		before := maps.Clone(shelf)
		rep, err := tc.prune(t, s, p, shelf)
		must.FailAs(t, err, tc.kind, tc.fails)
		must.Equal(t, "mirror", before, shelf)
		if tc.fails == "" && rep.Mirror != nil {
			t.Errorf("it was looked at: %v", rep.Mirror)
		}
	})
}

// TestPruneCache: an ISO that stays on the storages stays in the cache too.
func TestPruneCache(t *testing.T) {
	t.Parallel()
	const claimed, asked, given = "claim", "ask", "give back"
	type row struct {
		prepare func(*pruneSite)
		only    string
		want    []string // changes on Proxmox
		gone    []string
		fails   string
	}
	must.Bubbles(t, map[string]row{
		"alone": {only: PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild), isoNamed(openBuild)}},
		"with all others": {
			want: []string{claimed, asked, "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), given},
			gone: []string{isoNamed(goneBuild), isoNamed(openBuild)},
		},
		"not asked for": {only: PruneISOs, want: []string{claimed, asked, "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), given}},
		"an unfinished replacement": {
			prepare: func(s *pruneSite) { s.park(`{"VM":{"ID":9,"Name":"wk9","Host":"pve1"}}`) },
			only:    PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild)},
		},
		"deletes no ISO of a storage": {
			prepare: func(s *pruneSite) { s.lacks = "Datastore.Allocate" },
			only:    PruneCache, want: []string{claimed, asked, given}, gone: []string{isoNamed(goneBuild), isoNamed(openBuild)},
		},
		"no right to see VMs": {prepare: func(s *pruneSite) { s.lacks = "VM.Audit" }, only: PruneCache, fails: "VM.Audit"},
		"half a view":         {prepare: func(s *pruneSite) { s.blind = fault.Refusedf("sees half") }, only: PruneCache, fails: "sees half"},
	}, func(t *testing.T, tc row) {
		p, s := pruneProject(t)
		err := os.MkdirAll(p.isoCache(), 0o700)
		for name, changed := range s.isos {
			file := filepath.Join(p.isoCache(), name)
			err = errors.Join(err, os.WriteFile(file, []byte("iso"), 0o600), os.Chtimes(file, changed, changed))
		}
		must.Do(t, err)
		if tc.prepare != nil {
			tc.prepare(s)
		}
		rep, err := s.pruneAs(t, p, true, PruneOptions{Only: tc.only})
		must.Fail(t, err, tc.fails)
		must.Equal(t, "refused", tc.fails != "", fault.KindOf(err) == fault.Refused)
		must.Equal(t, "changes on Proxmox", tc.want, s.changes)
		var gone []string
		for _, v := range rep.Cache {
			if _, err := os.Stat(filepath.Join(p.isoCache(), v.Name)); err != nil && v.Removed {
				gone = append(gone, v.Name)
			}
		}
		left, err := os.ReadDir(p.isoCache())
		if diff := cmp.Diff(tc.gone, gone); diff != "" || err != nil || len(left) != 5-len(gone) {
			t.Errorf("%d files are left, %v; removed from the cache (-want +got):\n%s", len(left), err, diff)
		}
	})
}
