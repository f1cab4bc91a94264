package pipeline

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
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
	if strings.HasPrefix(ref, "ghcr.io/siderolabs/i") { // the imager and the base installer
		return hex64("f"), true, nil
	}
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
	must.Hold(t, err == nil && res.Differs && len(res.Changes) == 0,
		"a reference by digest instead of tag: differs %t, changes %v, %v", res.Differs, res.Changes, err)
	must.FailAs(t, must.Err(p.Lock()), fault.Config, "schematic bgp has changed since it was locked")
}

// TestLockSaysPlainHTTP: each lock warns of a factory without TLS, except on this machine.
func TestLockSaysPlainHTTP(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"https://factory.lan": 0, "http://factory.lan:8080": 1, "http://10.0.0.5": 1, "http://localhost.evil.example": 1,
		"http://localhost:8080": 0, "http://127.1.1.1": 0, "http://[::1]:80": 0, "http://[::1]": 0,
	} {
		p := lockProject(t)
		p.Config.Images.Factory = url
		for range 2 {
			res := must.Get(Lock(t.Context(), p, (&published{agent: hex64("a"), frr: hex64("c")}).images(), LockOptions{}))(t)
			must.Equal(t, url, want, len(res.Warnings))
		}
	}
}

// TestSignatureByDefault: once the key of a factory is known, an installer without its signature is refused, unless the
// factory has no TLS: who is on the way to it could have sent the key, too.
func TestSignatureByDefault(t *testing.T) {
	t.Parallel()
	type row struct {
		factory, signer, key, mode string
		want                       images.SignatureMode
	}
	must.Each(t, map[string]row{
		"nothing known":           {want: images.SignatureWarn},
		"signed before":           {signer: "1", want: images.SignatureRequire},
		"a key in recast.yaml":    {key: "key.pem", want: images.SignatureRequire},
		"signed before, no TLS":   {factory: "http://factory.lan", signer: "1", want: images.SignatureWarn},
		"a key, no TLS":           {factory: "http://factory.lan", key: "key.pem", want: images.SignatureRequire},
		"signed before, but warn": {signer: "1", mode: "warn", want: images.SignatureWarn},
	}, func(t *testing.T, c row) {
		p := lockProject(t)
		if c.factory != "" {
			p.Config.Images.Factory = c.factory
		}
		if c.mode != "" {
			p.Config.Images.Signature = c.mode
		}
		p.Config.Images.SigningKey = c.key
		lock := must.Get(Lock(t.Context(), p, (&published{agent: hex64("a"), frr: hex64("c")}).images(), LockOptions{}))(t).Lock
		e := lock.Schematics["default"]
		e.Signer = c.signer
		lock.Schematics["default"] = e
		must.Equal(t, "mode", c.want, newWorkshop(p, lock, Images{}, nil).signature().Mode)
	})
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
		must.Be(t, (err != nil || tc.err == "") && (err == nil || err.Error() == tc.err), "error is %v, want %q", err, tc.err)
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
		must.Hold(t, tc.fails != "" || rep.Mirror == nil, "it was looked at: %v", rep.Mirror)
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

// pruneSite is a Proxmox cluster with one storage for ISOs; methods that are not needed are nil.
type pruneSite struct {
	cluster.Proxmox
	mu       sync.Mutex // the claim's heartbeat comes in between
	vms      map[cluster.VMID]cluster.VM
	isos     map[string]time.Time // name → when it came
	uses     []images.Use
	blind    error
	lacks    string // a privilege
	noQuorum bool
	busy     func() []string // tasks of an earlier run; nil: none
	changes  []string
}

func (s *pruneSite) TokenID() string                            { return "recast@pve!t" }
func (s *pruneSite) Quorate(context.Context) (bool, error)      { return !s.noQuorum, nil }
func (s *pruneSite) Uses(context.Context) ([]images.Use, error) { return s.uses, s.blind }

func (s *pruneSite) Permissions(context.Context, string) (cluster.Privileges, error) {
	all := cluster.Privileges{}
	for _, p := range []string{
		"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.Allocate", "Datastore.AllocateTemplate",
		"VM.Config.Disk", "Datastore.AllocateSpace",
	} {
		if p != s.lacks {
			all[p] = true
		}
	}
	return all, nil
}

func (s *pruneSite) Standing(context.Context, []string) (map[string]cluster.Standing, error) {
	return nil, nil
}

func (s *pruneSite) OwnTasks(context.Context, func(cluster.VMID) bool) ([]string, error) {
	if s.busy == nil {
		return nil, nil
	}
	return s.busy(), nil
}

func (s *pruneSite) VMs(context.Context) ([]cluster.VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var vms []cluster.VM
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		vm := s.vms[id]
		vm.Config = maps.Clone(vm.Config)
		vms = append(vms, vm)
	}
	return vms, nil
}

func (s *pruneSite) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	vm, ok := s.vms[id]
	if !ok {
		return vm, cluster.ErrNotFound
	}
	vm.Config = maps.Clone(vm.Config)
	return vm, nil
}

func (s *pruneSite) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := s.VM(ctx, id)
	vm.Running = true
	return vm, err
}

func (s *pruneSite) CreateVM(_ context.Context, host string, id cluster.VMID, config map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms[id] = cluster.VM{ID: id, Name: config["name"], Host: host, Config: maps.Clone(config)}
	s.changes = append(s.changes, "claim")
	return nil
}

func (s *pruneSite) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, _ []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.vms[vm.ID].Config, set)
	return nil
}

func (s *pruneSite) DeleteVM(_ context.Context, vm cluster.VM) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.vms, vm.ID)
	s.changes = append(s.changes, "give back")
	return nil
}

func (s *pruneSite) Nodes(context.Context) (online, offline []string, err error) {
	return []string{"pve1"}, []string{"pve2"}, nil
}

func (s *pruneSite) Storage(context.Context, string, string) (images.StorageInfo, error) {
	return images.StorageInfo{Active: true, Shared: true, Content: []string{"iso", "import", "images"}}, nil
}

func (s *pruneSite) ISOs(_ context.Context, host, storage string) ([]images.StoredISO, error) {
	return s.stored(host, storage, ".iso"), nil
}

func (s *pruneSite) DiskImages(_ context.Context, host, storage string) ([]images.StoredISO, error) {
	return s.stored(host, storage, ".qcow2"), nil
}

func (s *pruneSite) stored(host, storage, end string) (list []images.StoredISO) {
	for _, name := range slices.Sorted(maps.Keys(s.isos)) {
		if strings.HasSuffix(name, end) {
			list = append(list, images.StoredISO{Host: host, Storage: storage, Name: name, SizeBytes: 1 << 20, Changed: s.isos[name]})
		}
	}
	return list
}

func (s *pruneSite) DeleteISO(_ context.Context, iso images.StoredISO) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.isos, iso.Name)
	s.changes = append(s.changes, "delete "+iso.Name)
	return nil
}

// park adds the record of an unfinished replacement that brings openBuild; memory is its memory, as cluster packs it.
func (s *pruneSite) park(memory string) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := io.WriteString(w, memory)
	rec := parking.Record{
		Cluster: "other", Node: "wk9", Run: "r9", Build: openBuild, VMID: 9, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes,
	}
	err = errors.Join(err, w.Close())
	rec.Memory = base64.RawURLEncoding.EncodeToString(packed.Bytes())
	description, errRecord := rec.Description()
	if err := errors.Join(err, errRecord); err != nil {
		panic(err)
	}
	s.vms[9090] = cluster.VM{ID: 9090, Name: "recast-parking-wk9", Host: "pve1", Config: map[string]string{"description": description}}
}

func isoNamed(build string) string {
	return "recast-v1.13.9-" + schematics.Short(build) + "-nocloud-amd64.iso"
}

// Builds that are in no lock here.
var (
	goneBuild = strings.Repeat("a", 64)
	openBuild = strings.Repeat("b", 64)
	runBuild  = strings.Repeat("c", 64)
)

// pruneProject has a lock, a previous one, and an ISO of each and of the builds above, all old.
func pruneProject(t *testing.T) (Project, *pruneSite) {
	t.Helper()
	p, build := project(t)
	p.Config.Images.ISO.Storage = []string{"isos"}
	p.Config.Roll.Poll = config.Duration(time.Second)
	before, _, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.8", Arch: "amd64", Platform: "nocloud",
		Files: map[string]schematics.File{"default": {Path: "default.yaml", Data: []byte("customization: {}\n")}},
	}, schematics.Sources{Catalog: noExtensions{}})
	if err == nil {
		err = schematics.Archive(p.Locks().Dir, before)
	}
	must.Do(t, err)
	s := &pruneSite{vms: map[cluster.VMID]cluster.VM{
		101: {ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"description": "recast: run=r0 build=" + runBuild}},
	}, isos: map[string]time.Time{}}
	for _, name := range []string{before.Schematics["default"].ISO.Name, isoNamed(build), isoNamed(goneBuild), isoNamed(openBuild), isoNamed(runBuild)} {
		s.isos[name] = time.Now().Add(-1000 * time.Hour)
	}
	return p, s
}

func (s *pruneSite) prune(t *testing.T, p Project, confirm bool) (PruneReport, error) {
	t.Helper()
	return s.pruneAs(t, p, confirm, PruneOptions{})
}

// pruneAs prunes with these options; the answer to its question is confirm.
func (s *pruneSite) pruneAs(t *testing.T, p Project, confirm bool, o PruneOptions) (PruneReport, error) {
	t.Helper()
	o.OlderThan, o.Holder = 168*time.Hour, claim.Holder{Host: "h", Boot: "b", PID: 1, Start: "1"}
	o.Confirm = func(PruneReport) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, "ask")
		return confirm, nil
	}
	return Prune(t.Context(), p, s, s, &step.Runner{}, o)
}

func TestPrune(t *testing.T) {
	t.Parallel()
	type row struct {
		prepare func(*pruneSite)
		no      bool // the answer
		want    []string
		fails   string
		kind    fault.Kind
	}
	must.Bubbles(t, map[string]row{
		"what nothing needs": {want: []string{"claim", "ask", "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), "give back"}},
		"an open record, of another cluster": {
			prepare: func(s *pruneSite) {
				// A VM that had an ISO of another build in its drive, and has to be put back perhaps.
				s.park(`{"VM":{"ID":9,"Name":"wk9","Host":"pve1","Config":{"ide2":"isos:iso/` + isoNamed(goneBuild) + `,media=cdrom"}}}`)
			},
		},
		"an open record that can't be read": {
			prepare: func(s *pruneSite) { s.park("{") },
			fails:   `VM 9090 "recast-parking-wk9" on pve1: record of node wk9: what it remembers of VM 9 can't be read`, kind: fault.Refused,
		},
		"a task of a run that was killed": {
			prepare: func(s *pruneSite) {
				until := time.Now().Add(time.Minute)
				s.busy = func() []string {
					if time.Now().Before(until) {
						return []string{"qmcreate 7 on pve1"}
					}
					s.uses = []images.Use{{By: "VM 7", Values: []string{"isos:iso/" + isoNamed(goneBuild)}}}
					return nil
				}
			}, want: []string{"claim", "ask", "delete " + isoNamed(openBuild), "give back"},
		},
		"nothing to do": {
			prepare: func(s *pruneSite) {
				s.uses = []images.Use{{By: "VM 7", Values: []string{"isos:iso/" + isoNamed(goneBuild), "isos:iso/" + isoNamed(openBuild)}}}
			},
		},
		"no":          {no: true, want: []string{"claim", "ask", "give back"}, fails: "not confirmed; nothing was removed", kind: fault.Interrupted},
		"no quorum":   {prepare: func(s *pruneSite) { s.noQuorum = true }, fails: "the Proxmox cluster has no quorum", kind: fault.Refused},
		"no right":    {prepare: func(s *pruneSite) { s.lacks = "Datastore.Allocate" }, fails: "Datastore.Allocate on /storage/isos", kind: fault.Refused},
		"half a view": {prepare: func(s *pruneSite) { s.blind = fault.Refusedf("sees half") }, fails: "sees half", kind: fault.Refused},
		"another run": {
			prepare: func(s *pruneSite) {
				s.vms[9089] = cluster.VM{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}}
				time.AfterFunc(time.Second, func() { // it is alive
					s.mu.Lock()
					defer s.mu.Unlock()
					s.vms[9089].Config["description"] = strings.Replace(claimText, `"beat":7`, `"beat":8`, 1)
				})
			}, fails: "held by run r1", kind: fault.Claimed,
		},
	}, func(t *testing.T, tc row) {
		p, s := pruneProject(t)
		if tc.prepare != nil {
			tc.prepare(s)
		}
		rep, err := s.prune(t, p, !tc.no)
		must.FailAs(t, err, tc.kind, tc.fails)
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range rep.ISOs {
			if _, there := s.isos[v.Name]; v.Removed == there {
				t.Errorf("%s: removed is %t", v, v.Removed)
			}
		}
	})
}

func TestPruneSaysWhy(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, s := pruneProject(t)
		s.isos[isoNamed(goneBuild)] = time.Now()
		rep, err := s.prune(t, p, false)
		must.Be(t, fault.KindOf(err) == fault.Interrupted, "%v", err)
		got := map[string]string{}
		for _, v := range rep.ISOs {
			got[v.Name] = strings.Join(v.Keep, "; ")
		}
		lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
		want := map[string]string{
			lock.Schematics["default"].ISO.Name: "recast.lock has it",
			isoNamed(goneBuild):                 "it is younger than 168h",
			isoNamed(openBuild):                 "",
			isoNamed(runBuild):                  `VM 101 "wk1" on pve1 was created from it`,
		}
		for name := range s.isos {
			if strings.HasPrefix(name, "recast-v1.13.8-") {
				want[name] = "the previous lock has it: the way back"
			}
		}
		must.Equal(t, "why they stay", want, got)
		must.Equal(t, "unseen", []string{"pve2 is offline: its own storages were not checked"}, rep.Unseen)
	})
}

// TestPruneDiskImages: disk images go and stay by the same rules as ISOs, on the storages that the
// configuration names for them.
func TestPruneDiskImages(t *testing.T) {
	t.Parallel()
	diskNamed := func(build string) string { return strings.TrimSuffix(isoNamed(build), ".iso") + ".qcow2" }
	p, s := pruneProject(t)
	lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
	e := lock.Schematics["default"]
	e.Disk = schematics.Disk{BootFile: schematics.BootFile{Name: lock.DiskName(e), SHA256: strings.Repeat("0", 64), SizeBytes: 1}, DiskBytes: 1}
	lock.Schematics["default"] = e
	must.Do(t, schematics.WriteLock(p.LockFile(), lock))
	s.isos = map[string]time.Time{}
	for _, name := range []string{e.Disk.Name, diskNamed(goneBuild), diskNamed(runBuild), isoNamed(goneBuild)} {
		s.isos[name] = time.Now().Add(-1000 * time.Hour)
	}
	s.isos[diskNamed(openBuild)] = time.Now()
	for _, step := range []struct {
		storages []string
		want     []string
	}{
		{nil, []string{"claim", "ask", "delete " + isoNamed(goneBuild), "give back"}},
		{[]string{"imports"}, []string{"claim", "ask", "delete " + diskNamed(goneBuild), "give back"}},
	} {
		p.Config.Images.Disk.Storage, s.changes = step.storages, nil
		rep := must.Get(s.prune(t, p, true))(t)
		must.Equal(t, fmt.Sprintf("with %q", step.storages), step.want, s.changes)
		for _, v := range rep.ISOs {
			want := map[string]string{
				e.Disk.Name: "recast.lock has it", diskNamed(runBuild): `VM 101 "wk1" on pve1 was created from it`, diskNamed(openBuild): "it is younger than 168h",
			}[v.Name]
			must.Equal(t, v.Name+" is kept because", want, strings.Join(v.Keep, "; "))
		}
	}
}

func (s *pruneSite) Ties(context.Context, cluster.VM) (cluster.Ties, error) {
	return cluster.Ties{}, nil
}

func (s *pruneSite) Storages(context.Context) ([]cluster.Storage, error) {
	return []cluster.Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "dir", Shared: true}}, nil
}

func (s *pruneSite) OwnedVolumes(context.Context, string, string, cluster.VMID) ([]string, error) {
	return nil, nil
}

func (s *pruneSite) FreeDisk(_ context.Context, vm cluster.VM, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vms[vm.ID].Config["protection"] == "1" {
		return fault.Refusedf("can't remove drive '%s' - protection mode enabled", key)
	}
	delete(s.vms[vm.ID].Config, key)
	s.changes = append(s.changes, "free "+key)
	return nil
}

// keep parks two old system disks of a node.
func (s *pruneSite) keep(t *testing.T, id cluster.VMID, node string) {
	t.Helper()
	rec := parking.Record{Cluster: "c1", Node: node, Run: "20261121-0421-3f2a", VMID: 101, UUID: "u"}
	config := map[string]string{"protection": "1"}
	for i, key := range []string{"scsi30", "scsi29"} {
		run := []string{"20261114-0421-3f2a", "20261121-0421-3f2a"}[i]
		rec.Kept = append(rec.Kept, parking.KeptDisk{Key: key, Run: run, Slot: "scsi0", Options: "serial=" + run + ",size=10G", Talos: "v1.13.8"})
		config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,serial=%s,size=10G,backup=0", id, i, run)
	}
	config["description"] = must.Get(rec.Description())(t)
	s.vms[id] = cluster.VM{ID: id, Name: "recast-parking-" + node, Host: "pve1", Config: config}
}

// TestPruneKinds removes disks, the parking VM that is then empty, and ISOs, or only one
// kind. What the token may not do is refused before any question.
func TestPruneKinds(t *testing.T) {
	t.Parallel()
	isos := []string{"delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild)}
	none := 0
	type row struct {
		node, only, lacks string
		keep              *int
		want              []string
		fails, hint       string
	}
	must.Bubbles(t, map[string]row{
		"all of it":                        {node: "wk1", want: append([]string{"claim", "ask", "free scsi30"}, append(slices.Clone(isos), "give back")...)},
		"disks only":                       {node: "wk1", only: PruneDisks, want: []string{"claim", "ask", "free scsi30", "give back"}},
		"ISOs only":                        {node: "wk1", only: PruneISOs, want: append(append([]string{"claim", "ask"}, isos...), "give back")},
		"none stays":                       {node: "wk1", only: PruneDisks, keep: &none, want: []string{"claim", "ask", "free scsi30", "free scsi29", "give back", "give back"}},
		"a node that is no longer there":   {node: "wk9", only: PruneDisks, want: []string{"claim", "ask", "free scsi30", "free scsi29", "give back", "give back"}},
		"may not free disks":               {node: "wk1", lacks: "VM.Config.Disk", fails: "VM.Config.Disk on /vms", hint: "recast prune --only isos"},
		"may not free disks there":         {node: "wk1", lacks: "Datastore.AllocateSpace", fails: "Datastore.AllocateSpace on /storage/fast", hint: "recast prune --only isos"},
		"may not free disks, ISOs only":    {node: "wk1", only: PruneISOs, lacks: "VM.Config.Disk", want: append(append([]string{"claim", "ask"}, isos...), "give back")},
		"may not delete ISOs":              {node: "wk1", lacks: "Datastore.Allocate", fails: "Datastore.Allocate on /storage/isos", hint: "recast prune --only disks"},
		"may not delete ISOs, disks only":  {node: "wk1", only: PruneDisks, lacks: "Datastore.Allocate", want: []string{"claim", "ask", "free scsi30", "give back"}},
		"may not free disks, asked for so": {node: "wk1", only: PruneDisks, lacks: "VM.Config.Disk", fails: "VM.Config.Disk on /vms"},
	}, func(t *testing.T, tc row) {
		p, s := pruneProject(t)
		p.Config.Roll.KeepDisks, p.Config.Nodes = 1, []config.Node{{Name: "wk1", Schematic: "default"}}
		s.keep(t, 9091, tc.node)
		s.lacks = tc.lacks
		rep, err := s.pruneAs(t, p, true, PruneOptions{Only: tc.only, KeepDisks: tc.keep})
		must.Fail(t, err, tc.fails)
		must.Equal(t, "refused", tc.fails != "", fault.KindOf(err) == fault.Refused)
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, tc.hint) || tc.hint == "" && strings.Contains(hints, "--only") {
			t.Errorf("hints %q, want %q", hints, tc.hint)
		}
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range rep.Disks {
			if _, there := s.vms[9091].Config[v.Key]; v.Removed == there || v.Replaced.IsZero() {
				t.Errorf("verdict %+v", v)
			}
		}
		if park, there := s.vms[9091]; there && park.Config["protection"] != "1" {
			t.Errorf("its protection was lifted: %q", slices.Sorted(maps.Keys(park.Config)))
		}
	})
}
