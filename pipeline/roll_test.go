package pipeline

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// TestMistakesAreFoundBeforeTheClaim: no server is asked, and so no claim is taken over, by a command with a mistake
// that its own files and arguments show. There is no client at all.
func TestMistakesAreFoundBeforeTheClaim(t *testing.T) {
	t.Parallel()
	only := func(names ...string) RollOptions { return RollOptions{Policy: planning.Policy{Only: names}} }
	back := func(way planning.Way) RollOptions {
		return RollOptions{Policy: planning.Policy{Only: []string{"wk9"}}, Undo: planning.Undone{Way: way}}
	}
	type command func(context.Context, Project, Machines, *step.Runner, RollOptions) (Report, error)
	roll := func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
		return Roll(ctx, p, Images{}, m, run, o)
	}
	about := func(node string, of func(context.Context, Project, Machines, *step.Runner, RollOptions, string) (Report, error)) command {
		return func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
			return of(ctx, p, m, run, o, node)
		}
	}
	bootstrap := about("wk9", func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions, node string) (Report, error) {
		return Bootstrap(ctx, p, Images{}, m, run, o, node)
	})
	type row struct {
		do     command
		o      RollOptions
		noLock bool
		want   string
	}
	must.Each(t, map[string]row{
		"roll of no node":          {do: roll, o: only("wk9"), want: `no node "wk9"`},
		"roll without no node":     {do: roll, o: RollOptions{Policy: planning.Policy{Exclude: []string{"wk9"}}}, want: `no node "wk9"`},
		"roll without a lock":      {do: roll, noLock: true, want: "recast.lock"},
		"roll of another cluster":  {do: roll, o: RollOptions{Saved: &planning.Plan{ID: "0123456789", Cluster: "other"}}, want: "plan"},
		"undo of no node":          {do: Undo, o: only("wk9"), want: `no node "wk9"`},
		"undo without a lock":      {do: Undo, noLock: true, want: "recast.lock"},
		"undo --previous, no node": {do: Undo, o: back(planning.Previous), want: `no node "wk9"`},
		"undo --cancel of no node": {do: Undo, o: back(planning.Cancel), want: `no node "wk9"`},
		"remove of no node":        {do: about("wk9", Remove), want: `no node "wk9"`},
		"bootstrap with no node":   {do: bootstrap, want: `no node "wk9"`},
		"bootstrap without a lock": {do: bootstrap, noLock: true, want: "recast.lock"},
	}, func(t *testing.T, c row) {
		p := lockedProject(t)
		if c.noLock {
			must.Do(t, os.Remove(p.LockFile()))
		}
		must.Fail(t, must.Err(c.do(t.Context(), p, Machines{}, &step.Runner{Emit: func(step.Event) {}}, c.o)), c.want)
	})
}

// TestAClaimThatMayBeHeldIsNotTakenOverInVain: a question that nobody could answer, credentials that are refused, labels
// that no node has, and a machine configuration that can't be read, are found before the claim of a run that may be alive is watched; not before that of one that has ended.
func TestAClaimThatMayBeHeldIsNotTakenOverInVain(t *testing.T) {
	t.Parallel()
	errAsk, errFile := errors.New("nobody to ask"), errors.New("no key")
	files := func(_ context.Context, node string) (cluster.Secret, bool, error) {
		if node == "wk1" {
			return nil, false, errFile
		}
		return nil, false, nil
	}
	errExpired := fault.Credentials.Of(errors.New("expired"))
	errCA := fault.TLS.Of(errors.New("of another cluster"))
	zone := cluster.Selector{Text: "zone=c", Matches: func(l map[string]string) bool { return l["zone"] == "c" }}
	inZone := func(node string) cluster.KubeNode {
		n := cluster.KubeNode{Name: node}
		n.Metadata.Labels = map[string]string{"zone": "c"}
		return n
	}
	for name, c := range map[string]struct {
		ask   error
		o     planning.Policy
		of    string // the command; "": roll
		kube  knownKube
		talos knownTalos
		out   bool // a control plane may be out of service
		want  error
		text  string
	}{
		"kubeconfig that is refused":  {of: "undo", kube: knownKube{err: errExpired}, want: errExpired},
		"of another cluster":          {of: "undo", kube: knownKube{err: errCA}, want: errCA},
		"talosconfig that is refused": {of: "undo", talos: knownTalos{err: errExpired}, want: errExpired},
		"a machine in maintenance":    {of: "undo", talos: knownTalos{err: errCA}, out: true},
		"talosconfig of another one":  {of: "undo", talos: knownTalos{err: errCA}, want: errCA},
		"expired, with one out":       {of: "undo", talos: knownTalos{err: errExpired}, out: true, want: errExpired},
		"no Kubernetes":               {of: "undo", kube: knownKube{err: errors.New("no answer")}},
		"no Talos":                    {of: "undo", talos: knownTalos{err: errors.New("no answer")}},
		"labels of no node":           {of: "undo", o: planning.Policy{Labels: zone}, text: `has labels "zone=c"`},
		"labels of another node":      {of: "undo", o: planning.Policy{Labels: zone}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk9")}}, text: `has labels "zone=c"`},
		"labels of one left out":      {of: "undo", o: planning.Policy{Labels: zone, Exclude: []string{"wk1"}}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk1")}}, text: `has labels "zone=c"`},
		"labels":                      {of: "undo", o: planning.Policy{Labels: zone}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk1")}}},
		"nobody can be asked":         {ask: errAsk, want: errAsk},
		"a file":                      {want: errFile},
		"a file, of undo":             {of: "undo"},
		"a file of another":           {o: planning.Policy{Exclude: []string{"wk1"}}},
	} {
		p := lockedProject(t)
		w := newWork(p, Machines{MachineConfig: files, Kube: c.kube, Talos: c.talos}, nil, RollOptions{Policy: c.o, MayAsk: func() error { return c.ask }}, cmp.Or(c.of, "roll"))
		switch err := w.requireReady(t.Context(), c.out); {
		case c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: %v, want %s", name, err, c.text)
		case c.text == "" && !errors.Is(err, c.want):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

type knownKube struct {
	cluster.Kube
	nodes []cluster.KubeNode
	err   error
}

func (k knownKube) Nodes(context.Context) ([]cluster.KubeNode, error) { return k.nodes, k.err }

type knownVMs struct {
	cluster.Proxmox
	vms []cluster.VM
}

func (k knownVMs) VMs(context.Context) ([]cluster.VM, error) { return k.vms, nil }

type knownTalos struct {
	cluster.Talos
	err error
}

func (k knownTalos) Members(context.Context) ([]cluster.Member, error) { return nil, k.err }

// TestUnknownRunIsFoundBeforeTheClaim: what --run names is looked up in what is parked, before anybody looks for a claim.
func TestUnknownRunIsFoundBeforeTheClaim(t *testing.T) {
	t.Parallel()
	parkingVM := func(id cluster.VMID, rec parking.Record) cluster.VM {
		rec.Cluster = "c1"
		text := must.Get(rec.Description())(t)
		return cluster.VM{ID: id, Name: "recast-parking-" + rec.Node, Host: "pve1", Config: map[string]string{"description": text, "protection": "1"}}
	}
	vms := []cluster.VM{
		parkingVM(9090, parking.Record{Node: "wk1", UUID: "u1", Run: "20261121-0421-aaaa", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}),
		parkingVM(9091, parking.Record{Node: "wk2", UUID: "u2", Run: "20261121-0422-bbbb", Kept: []parking.KeptDisk{
			{Run: "20261120-0300-0000", Key: "scsi29", Nth: 1}, {Run: "20261121-0422-bbbb", Key: "scsi30", Nth: 2},
		}}),
	}
	for run, want := range map[string]string{
		"20261121-0421-aaaa": "", "bbbb": "", "": "",
		"0000":     `no node's present system disk is of a run "0000"`, // a later run has replaced it
		"cccc":     `no node's present system disk is of a run "cccc"`,
		"20261121": `"20261121" is a part of several runs`,
	} {
		p := lockedProject(t)
		p.Config.Cluster = "c1"
		w := newWork(p, Machines{Proxmox: knownVMs{vms: vms}}, &step.Runner{Emit: func(step.Event) {}}, RollOptions{Undo: planning.Undone{Run: run}}, "")
		err := w.requireRun(vms, nil)
		if want != "" {
			err = w.settle(t.Context()) // there is nobody to ask for a claim
		}
		got := clustertest.Message(err)
		must.Hold(t, (want == "") == (err == nil) && strings.HasPrefix(got, want), "%q: %q, want %q", run, got, want)
		must.Pass(t, w.requireRun(vms[:1], &cluster.HostsAway{}))
	}
}

// TestWayBackIsCheckedBeforeTheClaim: a node that has nothing parked is refused at once, while another run holds the claim.
func TestWayBackIsCheckedBeforeTheClaim(t *testing.T) {
	t.Parallel()
	parked := func(node string, open bool, kept ...parking.KeptDisk) cluster.VM {
		text := must.Get(parking.Record{Cluster: "c1", Node: node, UUID: "u", Run: "r", Open: open, Strategy: cluster.Rollback, Kept: kept}.Description())(t)
		return cluster.VM{ID: 9090, Name: "recast-parking-" + node, Host: "pve1", Config: map[string]string{"description": text}}
	}
	vms := []cluster.VM{parked("open", true), parked("kept", false, parking.KeptDisk{Key: "scsi30"}), parked("gone", false, parking.KeptDisk{Key: "scsi30", Removed: true})}
	for node, refused := range map[string]bool{"open": false, "kept": false, "gone": true, "other": true} {
		p := lockedProject(t)
		p.Config.Cluster = "c1"
		w := newWork(p, Machines{}, &step.Runner{Emit: func(step.Event) {}}, RollOptions{}, "undo --cancel")
		w.back = []string{node}
		err := w.requireWayBack(vms, nil)
		must.Hold(t, (err != nil) == refused && (!refused || fault.KindOf(err) == fault.Refused), "%s: %v", node, err)
		must.Pass(t, w.requireWayBack(vms, &cluster.HostsAway{}))
	}
}

// lockedProject is a project with two workers whose lock fits its recast.yaml.
func lockedProject(t *testing.T) Project {
	t.Helper()
	p, _ := project(t)
	c := p.Config
	c.Talos.Version, c.Images.Arch, c.Images.Platform = "v1.13.9", "amd64", "nocloud"
	file := filepath.Join(c.Dir, "default.yaml")
	must.Do(t, os.WriteFile(file, []byte("customization: {}\n"), 0o600))
	c.Schematics = map[string]config.Schematic{"default": {File: "default.yaml", Path: file}}
	c.Nodes = []config.Node{{Name: "wk1", Schematic: "default"}, {Name: "wk2", Schematic: "default"}}
	must.Get(p.Lock())(t)
	return p
}

func TestWhereTheDisksOfANodeAreInASentence(t *testing.T) {
	t.Parallel()
	h := Half{Node: "wk1", VMID: 9031, Parking: 9090, VM: "deleted"}
	disk := func(key string, place DiskPlace) DiskStatus { return DiskStatus{Disk: key, Place: place} }
	for want, disks := range map[string][]DiskStatus{
		"wk1: VM 9031 (deleted); scsi0 (the old system disk), scsi1 parked on VM 9090, which nothing starts or deletes: nothing is lost": {{Disk: "scsi0", Place: OnParking, System: true}, disk("scsi1", OnParking)},
		"wk1: VM 9031 (deleted); scsi1 on VM 9031; scsi0 parked on VM 9090, which nothing starts or deletes; scsi2 with the VM that owns it: nothing is lost": {
			disk("scsi0", OnParking), disk("scsi1", OnVM), disk("scsi2", Detached),
		},
		"wk1: VM 9031 (deleted); scsi1 on its storage, for the moment without an owner: it is in the record, and recast roll finds it: nothing is lost": {disk("scsi1", Unnamed)},
		"wk1: VM 9031 (deleted); scsi0 on VM 9031; scsi1 not where the record says: run recast status first":                                            {disk("scsi0", OnVM), disk("scsi1", Lost)},
	} {
		h.Disks = disks
		must.Equal(t, "value", want, h.safe())
	}
}

func TestWanted(t *testing.T) {
	t.Parallel()
	agent := schematics.Extension{Name: "qemu-guest-agent", Version: "11.0.2", Ref: "ghcr.io/siderolabs/qemu-guest-agent", Digest: "sha256:11"}
	lock := schematics.Lock{Talos: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, Schematics: map[string]schematics.Locked{
		"default": {
			BuildID: "b1", SchematicID: "s1", LockHash: "sha256-00", Extensions: []schematics.Extension{agent},
			Overlay:   &schematics.Overlay{Name: "rpi", Ref: "ghcr.io/acme/sbc", Digest: "sha256:33"},
			Rebuild:   1,
			Installer: "ghcr.io/acme/talos@sha256:22", ISO: schematics.BootFile{Name: "default.iso"},
			Schematic: "customization:\n    extraKernelArgs:\n        - console=ttyS0\n        - recast.lock=sha256-00\n",
		},
		"plain": {BuildID: "b2", SchematicID: "s2", Schematic: "customization: {}\n"},
	}}
	p := Project{Config: &config.Config{
		Kubernetes: config.Kubernetes{Version: "v1.35.4"},
		Images:     config.Images{ISO: config.ISO{Storage: []string{"cephfs", "local"}}},
		Nodes: []config.Node{
			{
				Name: "wk1", Schematic: "default", VMID: 111, Strategy: "in-place", Holder: 9101, AcceptLoss: []string{"pv/a"},
				SystemDisk: config.SystemDisk{Slot: "scsi0", SizeGiB: 10},
			},
			{Name: "cp1", Schematic: "plain", Strategy: "auto"},
		},
	}}
	want := []cluster.Wanted{
		{
			Name: "wk1", Schematic: "default", VMID: 111, Strategy: cluster.InPlace, Holder: 9101, AcceptLoss: []string{"pv/a"},
			Kubernetes: "v1.35.4", SystemDisk: "scsi0", SystemGiB: 10, ISOStorages: []string{"cephfs", "local"},
			Build: cluster.Build{
				ID: "b1", TalosVersion: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, SchematicID: "s1", LockHash: "sha256-00",
				Extensions: []cluster.LockedExtension{{Name: agent.Name, Version: agent.Version, Ref: agent.Ref, Digest: agent.Digest}},
				Overlay:    cluster.LockedOverlay{Name: "rpi", Digest: "sha256:33"}, Rebuild: 1,
				Installer: "ghcr.io/acme/talos@sha256:22", ISOName: "default.iso",
				KernelArgs: []string{"console=ttyS0", "recast.lock=sha256-00"},
				Schematic:  cluster.Secret("customization:\n    extraKernelArgs:\n        - console=ttyS0\n        - recast.lock=sha256-00\n"),
			},
		},
		{
			Name: "cp1", Schematic: "plain", Strategy: cluster.Auto, Kubernetes: "v1.35.4", ISOStorages: []string{"cephfs", "local"},
			Build: cluster.Build{ID: "b2", TalosVersion: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, SchematicID: "s2", Schematic: cluster.Secret("customization: {}\n")},
		},
	}
	must.Equal(t, "wanted", want, p.Wanted(lock), cmpopts.EquateComparable(netip.Addr{}))
	past := must.Get(p.History(lock))(t)
	build := want[0].Build
	content, known := past("sha256-00")
	must.Equal(t, "history is known", true, known)
	must.Equal(t, "history", cluster.LockedContent{Extensions: build.Extensions, Overlay: build.Overlay, Rebuild: build.Rebuild}, content)
}

// TestConfigKnown: the journal's configuration takes precedence over the user's file,
// and neither is used if its checksum is not the record's.
func TestConfigKnown(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("machine: {}"))
	record := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate, Config: hex.EncodeToString(sum[:])}
	edited := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate}
	rollback := parking.Record{Run: "r1", Open: true, Strategy: cluster.Rollback}
	type row struct {
		journal, file string // "": there is none
		rec           parking.Record
		want          cluster.ConfigPlace
		damaged       bool
	}
	must.Each(t, map[string]row{
		"nowhere":                       {"", "", record, cluster.ConfigNowhere, false},
		"both":                          {"machine: {}", "machine: {}", record, cluster.ConfigInJournal, false},
		"another file":                  {"machine: {}", "machine: {a: 1}", record, cluster.ConfigInJournal, false},
		"the file alone":                {"", "machine: {}", record, cluster.ConfigInFile, false},
		"another file alone":            {"", "machine: {a: 1}", record, cluster.ConfigNowhere, false},
		"damaged":                       {"machine", "", record, cluster.ConfigNowhere, true},
		"damaged, the file is the same": {"machine", "machine: {}", record, cluster.ConfigInFile, false},
		"damaged, another file":         {"machine", "machine: {a: 1}", record, cluster.ConfigNowhere, true},
		"the record lacks its sum":      {"machine: {}", "machine: {}", edited, cluster.ConfigNowhere, true},
		"it does, and there is a file":  {"", "machine: {}", edited, cluster.ConfigNowhere, false},
		"a rollback brings none":        {"", "machine: {a: 1}", rollback, cluster.ConfigInFile, false},
		"a machine that was reset":      {"", "machine: {a: 1}", parking.Record{}, cluster.ConfigInFile, false},
	}, func(t *testing.T, c row) {
		p := projectOf(t)
		j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r1"})
		if err == nil && c.journal != "" {
			err = j.PutSecret(roll.MachineConfigKey("wk1"), []byte(c.journal))
		}
		must.Do(t, errors.Join(err, j.Close()))
		file := func(context.Context, string) (cluster.Secret, bool, error) {
			return cluster.Secret(c.file), c.file != "", nil
		}
		got, err := configKnown(t.Context(), p, Machines{MachineConfig: file}, "wk1", c.rec)
		must.Hold(t, got == c.want && errors.Is(err, cluster.ErrConfigDamaged) == c.damaged && (err == nil || c.damaged),
			"%q, %v", got, err)
	})
}

type fakePuller struct {
	image  []byte
	end    error // instead of EOF
	pulled []string
}

func (f *fakePuller) Extract(_ context.Context, ref, arch string) (io.ReadCloser, error) {
	f.pulled = append(f.pulled, ref+" "+arch)
	end := f.end
	if end == nil {
		end = io.EOF
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(f.image), failing{end})), nil
}

func (*fakePuller) Signatures(context.Context, string) ([]images.Signature, error) { return nil, nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func extensionImage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"manifest.yaml":             "version: v1alpha1\nmetadata:\n  name: tool\n  version: v1\n  author: Acme\n  description: A tool.\n  compatibility:\n    talos:\n      version: \">= v1.0.0\"\n",
		"rootfs/usr/local/bin/tool": "tool",
	} {
		must.Do(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}))
		must.Get(io.WriteString(w, text))(t)
	}
	must.Do(t, w.Close())
	return b.Bytes()
}

// TestLockedFiles: each image is read once, by digest.
func TestLockedFiles(t *testing.T) {
	t.Parallel()
	puller := &fakePuller{image: extensionImage(t)}
	locked := newLockedFiles(puller, func(string) {})
	build := cluster.Build{EmbedsConfig: true, Extensions: []cluster.LockedExtension{{Name: "tool", Version: "v1", Ref: "ghcr.io/acme/tool", Digest: "sha256:aa"}}}
	for range 2 {
		var target observe.FileTarget
		must.Do(t, locked.want(t.Context(), &target, "arm64", build))
		want := observe.FileTarget{EmbedsConfig: true, Content: []observe.LockedFiles{{Extension: build.Extensions[0], Files: map[string]observe.LockedFile{
			"/usr/local/bin/tool": {Mode: 0o755, SizeBytes: 4, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("tool")))},
		}}}}
		must.Equal(t, "target", want, target, cmpopts.EquateComparable(netip.Addr{}))
	}
	must.Equal(t, "pulled", []string{"ghcr.io/acme/tool@sha256:aa arm64"}, puller.pulled)
}

// TestLockedFilesAreChecked: an image whose digest turns out to be wrong after its last file is refused.
func TestLockedFilesAreChecked(t *testing.T) {
	t.Parallel()
	wrong := errors.New("it has another digest")
	locked := newLockedFiles(&fakePuller{image: extensionImage(t), end: wrong}, func(string) {})
	err := locked.want(t.Context(), new(observe.FileTarget), "amd64", cluster.Build{Extensions: []cluster.LockedExtension{{Name: "tool"}}})
	must.Hold(t, errors.Is(err, wrong) && strings.HasPrefix(err.Error(), "read the locked image of extension tool: "),
		"err = %v", err)
}

// TestDescribe: an unknown schematic is described without the values of its kernel arguments.
func TestDescribe(t *testing.T) {
	t.Parallel()
	got, ok := describe("customization:\n    extraKernelArgs:\n        - siderolink.api=grpc://x?jointoken=s3cret\n        - quiet\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/gvisor\n")
	want := observe.Described{Extensions: []string{"siderolabs/gvisor"}, Args: []string{"siderolink.api", "quiet"}}
	must.Equal(t, "described", true, ok)
	must.Equal(t, "description", want, got)
	if got, ok := describe("customization: {unknown: 1}\n"); ok {
		t.Errorf("got %+v", got)
	}
}

type fullShelf struct {
	images.Store
	stored int
}

func (s *fullShelf) Upload(context.Context, images.Upload) error     { s.stored++; return nil }
func (s *fullShelf) Download(context.Context, images.Download) error { s.stored++; return nil }

// TestClaimedStore: files are stored only while the claim is ours.
func TestClaimedStore(t *testing.T) {
	t.Parallel()
	shelf, lost := &fullShelf{}, error(nil)
	s := claimedStore{store: shelf, write: func(ctx context.Context, send func(context.Context) error) error {
		if lost != nil {
			return lost
		}
		return send(ctx)
	}}
	for _, lost = range []error{nil, errors.New("lost")} {
		err := s.Upload(t.Context(), images.Upload{})
		errDownload := s.Download(t.Context(), images.Download{})
		for _, err := range []error{err, errDownload} {
			must.Hold(t, errors.Is(err, lost) && errors.Is(err, images.ErrNotSent) == (lost != nil) && shelf.stored == 2,
				"stored %d times: %v", shelf.stored, err)
		}
	}
}

// listing is a datacentre that records which configurations are read.
type listing struct {
	cluster.Inventory
	vms  []cluster.VM
	read []cluster.VMID
	down error
}

func (l *listing) Listed(context.Context) ([]cluster.VM, error) {
	rows := slices.Clone(l.vms)
	for i := range rows {
		rows[i].Config = nil
	}
	return rows, nil
}

func (l *listing) VMs(context.Context) ([]cluster.VM, error) {
	l.read = append(l.read, cluster.Each(l.vms, func(vm cluster.VM) cluster.VMID { return vm.ID })...)
	return slices.Clone(l.vms), nil
}

func (l *listing) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	l.read = append(l.read, id)
	i := slices.IndexFunc(l.vms, func(vm cluster.VM) bool { return vm.ID == id })
	if i < 0 {
		return cluster.VM{}, cluster.ErrNotFound
	}
	return l.vms[i], l.down
}

// A watcher reads what changes, and what a run is about; it reads nothing else twice.
func TestWatched(t *testing.T) {
	t.Parallel()
	p, build := project(t)
	open := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: build, VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	px := &listing{vms: []cluster.VM{{ID: 100, Name: "other", Host: "pve1", Config: map[string]string{"cores": "1"}}, {ID: 9031, Name: "wk1", Host: "pve1", Running: true}}}
	w := p.Watched(px)
	look := func(what string, requests int, want ...cluster.VMID) {
		t.Helper()
		px.read = nil
		vms := must.Get(w.VMs(t.Context()))(t)
		must.Equal(t, what+": read", want, px.read)
		must.Equal(t, what+": VMs", px.vms, vms)
		must.Equal(t, what+": requests", requests, w.Requests())
	}
	look("first", 5, 100, 9031)
	look("nothing new", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}}, parkingVM(t, open, nil))
	look("a run begins", 3, 9089, 9090)
	look("and goes on", 4, 9031, 9089, 9090)
	px.vms[0].Running = true
	look("another one starts", 5, 100, 9031, 9089, 9090)
	if claim, found, err := p.Claim(t.Context(), w); err != nil || !found || claim.Beat != 7 {
		t.Errorf("claim %+v, %t: %v", claim, found, err)
	}
	w.Requests()
	px.vms = px.vms[:1]
	look("it is over", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9031, Name: "wk1", Host: "pve1"})
	px.down = errors.New("no route to host")
	look("one that can't be read", 6, 9031, 100, 9031)
	if _, found, err := p.Claim(t.Context(), w); found || err != nil {
		t.Errorf("a claim: %t, %v", found, err)
	}
}

func projectOf(t *testing.T) Project {
	return Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1"}}
}

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, p Project, id, outcome string, facts map[string]any) {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: id}))(t)
	for key, v := range facts {
		must.Do(t, j.Put(key, v))
	}
	if outcome != "" {
		must.Do(t, j.Finish(outcome))
	}
	must.Do(t, j.Close())
}

// TestOldRunsGo removes the oldest finished runs, unless a parking VM refers to them.
func TestOldRunsGo(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	made := func(n int) string { return fmt.Sprintf("20260101-0000-%04d", n) }
	for n := range keepRuns + 5 {
		outcome := "done"
		if n == 1 {
			outcome = ""
		}
		runWith(t, p, made(n), outcome, nil)
		// Their order is that of their beginning.
		info := fmt.Sprintf(`{"started":%q%s}`, time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC).Format(time.RFC3339),
			map[bool]string{true: `,"finished":"2026-01-02T00:00:00Z","outcome":"done"`}[outcome != ""])
		must.Do(t, os.WriteFile(filepath.Join(p.Runs().Dir, made(n), "RUN"), []byte(info), 0o600))
	}
	must.Do(t, os.MkdirAll(filepath.Dir(p.Page(made(0))), 0o700))
	must.Do(t, os.WriteFile(p.Page(made(0)), nil, 0o600))
	away := fmt.Errorf("pve2 does not answer")
	must.FailIs(t, forgetRuns(p, func() (map[string]bool, error) { return nil, away }), away)
	must.Do(t, forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }))
	gone := map[string]bool{made(0): true, made(3): true, made(4): true} // 1 has no end, 2 is needed
	for n := range 6 {
		must.Equal(t, made(n)+" is here", !gone[made(n)], p.Runs().Has(made(n)))
	}
	must.FailIs(t, must.Err(os.Stat(p.Page(made(0)))), os.ErrNotExist)
	must.Pass(t, forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }))
}

func TestBackupFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	saved, own := filepath.Join(dir, "saved"), filepath.Join(dir, "own")
	const name = "etcd-c1-20261121T040507Z.db"
	for _, made := range []string{saved, filepath.Join(own, name)} {
		must.Do(t, os.MkdirAll(made, 0o700))
	}
	file := filepath.Join(dir, "there.db")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	p.Config.Roll.EtcdSnapshot = filepath.Join(dir, "yet", "to be made")
	cases := map[string]struct {
		o    BackupOptions
		file string
		dir  string
		err  string
	}{
		"as configured":               {BackupOptions{Keep: 3}, filepath.Join(dir, "yet", "to be made", name), p.Config.Roll.EtcdSnapshot, ""},
		"a directory":                 {BackupOptions{To: saved, Keep: 3}, filepath.Join(saved, name), saved, ""},
		"a directory yet to be made":  {BackupOptions{To: saved + "/new/"}, filepath.Join(saved, "new", name), saved + "/new/", ""},
		"a file":                      {BackupOptions{To: saved + "/one.db"}, saved + "/one.db", "", ""},
		"a file that is there":        {BackupOptions{To: file}, "", "", "there.db exists already"},
		"a name that is there":        {BackupOptions{To: own}, "", "", name + " exists already"},
		"a file, and others to go":    {BackupOptions{To: saved + "/one.db", Keep: 1}, "", "", "one.db is a file, and --keep needs a directory"},
		"a file where a directory is": {BackupOptions{To: file + "/one.db"}, "", "", "not a directory"},
	}
	for name, c := range cases {
		file, dir, err := backupFile(p.Config, c.o, time.Date(2026, 11, 21, 5, 5, 7, 9, time.FixedZone("", 3600)))
		must.Hold(t, file == c.file && (dir == c.dir || c.err != "") && (err == nil) == (c.err == ""),
			"%s: %q in %q, %v", name, file, dir, err)
		must.Hold(t, err == nil || fault.KindOf(err) == fault.Config && strings.Contains(err.Error(), c.err),
			"%s: %v, want %q", name, err, c.err)
	}
}

func TestRemoveBackups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	others := []string{
		"etcd-c1-20261101-0421-3f2a.db",          // saved by a roll
		"etcd-c1-20261101T000000Z.db.part",       // not whole
		"etcd-c1-staging-20260101T000000Z.db",    // of another cluster
		"etcd-c10-20260101T000000Z.db",           // of another cluster
		"etcd-c1-20261399T000000Z.db", "mine.db", // whatever
	}
	ours := []string{"etcd-c1-20251231T235959Z.db", "etcd-c1-20260101T000000Z.db", "etcd-c1-20260102T000000Z.db"}
	for _, name := range append(others, ours...) {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "etcd-c1-20200101T000000Z.db"), 0o700))
	p := Project{Config: &config.Config{Cluster: "c1"}}
	for _, c := range []struct {
		taken string
		keep  int
		want  []string
	}{{ours[2], 9, nil}, {ours[2], 3, nil}, {ours[0], 2, ours[1:2]}, {ours[0], 1, ours[2:]}, {ours[0], 1, nil}} {
		must.Equal(t, fmt.Sprint("keep ", c.keep), c.want, must.Get(removeBackups(p.Config, dir, c.taken, c.keep))(t))
	}
	must.Equal(t, "left", len(others)+2, len(must.Get(os.ReadDir(dir))(t)))
}

type session struct {
	*work
	t *testing.T
	j *journal.Journal
}

// begin opens the journal of a run, like a roll that executes a plan.
func begin(t *testing.T, p Project, pid int, plan planning.Plan) session {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
	w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid, Boot: "b"}}, rep: Report{Plan: plan}}
	s := session{w, t, j}
	s.must(w.keepAbout(j, schematics.Lock{}), w.keepPlan(j), j.Resume())
	return s
}

func (s session) must(errs ...error) {
	s.t.Helper()
	must.Do(s.t, errors.Join(errs...))
}

func (s session) saw(path string, status step.Status) {
	s.tally.see(step.Event{Path: path, Status: status})
}

func (s session) took(node string) {
	s.must(s.j.Put(cluster.TookKey(node), cluster.Took{Node: node, OutageSeconds: 60}))
}

// finish ends the session as carryOut does; without it, the session was killed.
func (s session) finish(outcome string) {
	s.t.Helper()
	s.must(s.keepFates(s.j), s.j.Finish(outcome))
}

// A continued run is reported completely: its original purpose, and the results of all
// sessions. While someone continues it, it has not ended.
func TestContinuedRun(t *testing.T) {
	t.Parallel()
	both := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Why: "it is stale"}, {Node: "wk2", Strategy: cluster.Recreate, Why: "it is stale"},
	}}
	rest := planning.Plan{Cluster: "c1", Run: "r", Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate, Resume: true, Why: "run r began to recreate it and did not finish"}}}
	must.Each(t, map[string]bool{"after it failed": true, "after it was killed": false}, func(t *testing.T, ends bool) {
		p := projectOf(t)
		told := func(gone ...int) string {
			t.Helper()
			r := must.Get(p.Runs().Find("r", past.Options{Holder: claim.Holder{Boot: "b"}, Dead: func(h claim.Holder) bool { return slices.Contains(gone, h.PID) }}))(t)
			done, planned := r.Counted()
			return fmt.Sprintf("%s, %d of %d, ended %t, first planned because %s; %s", r.Result, done, planned, !r.Finished.IsZero(), r.Plan.Nodes[0].Why, strings.Join(r.Problems, "; "))
		}
		require := func(got, want string) {
			t.Helper()
			must.Equal(t, "told as", want+", first planned because it is stale; ", got)
		}
		first := begin(t, p, 1, both)
		first.saw("roll/workers/wk1", step.Done)
		first.took("wk1")
		first.saw("roll/workers/wk2", step.Failed)
		if ends {
			first.finish("failed: wk2: no quorum")
			require(told(1), "failed, 1 of 2, ended true")
		} else {
			require(told(1), "killed, 1 of 2, ended false")
		}
		first.must(first.j.Close())

		second := begin(t, p, 2, rest)
		require(told(1), "running, 1 of 2, ended false")
		second.must(second.j.Close())
		require(told(1, 2), "killed, 1 of 2, ended false")

		third := begin(t, p, 3, rest)
		third.saw("roll/unfinished/wk2", step.Done)
		third.finish("done")
		third.must(third.j.Close())
		require(told(1, 2, 3), "done, 2 of 2, ended true")
	})
}

// A roll whose first plan was about reset machines is reported with its own plan, and a
// node that was put back does not count as one that the run has brought to its goal.
func TestTheRunsOwnPlan(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	reset := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InstallReset}}}
	own := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate}, {Node: "wk3", Strategy: cluster.Recreate}}}
	back := planning.Plan{Run: "r", Nodes: []planning.NodePlan{{Node: "wk3", Strategy: cluster.PutBack}}}
	session := func(plan planning.Plan, fates map[string]step.Status, outcome string) {
		t.Helper()
		s := begin(t, p, 1, plan)
		for node, status := range fates {
			s.saw("roll/workers/"+node, status)
		}
		s.finish(outcome)
		s.must(s.j.Close())
	}
	require := func(want string) {
		t.Helper()
		r := must.Get(p.Runs().Find("r", past.Options{}))(t)
		done, planned := r.Counted()
		must.Equal(t, "it is told", want, fmt.Sprintf("%d of %d, %v", done, planned, *r.Fates))
	}
	session(reset, map[string]step.Status{"wk1": step.Done}, "done")
	session(own, map[string]step.Status{"wk2": step.Done, "wk3": step.Failed}, "failed: x")
	require("1 of 2, {[wk2] [wk3] []}")
	session(back, map[string]step.Status{"wk3": step.Done}, "done")
	require("1 of 2, {[wk2] [] [wk3]}")
}

// The last result of a node counts.
func TestTheLastFateOfANode(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	plan := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InPlace}, {Node: "wk2", Strategy: cluster.InPlace}, {Node: "wk3", Strategy: cluster.InPlace}}}
	s := begin(t, p, 1, plan)
	s.saw("roll/workers/wk1", step.Done)
	s.saw("roll/workers/wk2", step.Failed)
	s.finish("failed: x")
	s.must(s.j.Close())
	s = begin(t, p, 2, planning.Plan{Run: "r", Nodes: plan.Nodes[:2]})
	s.saw("roll/unfinished/wk1", step.Failed)
	s.saw("roll/unfinished/wk2", step.Done)
	s.finish("failed: x")
	s.must(s.j.Close())
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	must.Equal(t, "fates", "{[wk2] [wk1] [wk3]}", fmt.Sprint(*r.Fates))
}

// If a hook after the failed nodes fails, the run ends with that result, unless there was a worse one.
func TestAFailedHookAfterTheRun(t *testing.T) {
	t.Parallel()
	for was, want := range map[string]string{
		"done":                "failed: every node is done: hook x: it ended with 3",
		"failed: no quorum":   "failed: no quorum",
		"interrupted: Ctrl-C": "interrupted: Ctrl-C",
	} {
		p := projectOf(t)
		runWith(t, p, "r", was, nil)
		w := &work{Project: p}
		w.hooks.journal = "r"
		must.Do(t, w.noteFailed(errors.New("hook x: it ended with 3")))
		must.Equal(t, fmt.Sprintf("outcome of %q", was), want, must.Get(p.Runs().Outcome("r"))(t))
	}
}

func TestKeepAbout(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	lock := schematics.Lock{Version: 1, Talos: "v1.13.9", Schematics: map[string]schematics.Locked{"base": {BuildID: strings.Repeat("b", 64)}}}
	for _, pid := range []int{1, 1, 2} {
		j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
		w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid}, Origin: past.Origin{Recast: "v1"}}}
		must.Do(t, errors.Join(w.keepAbout(j, lock), j.Close()))
	}
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	want := &past.About{
		Command: "roll", Cluster: "c1", By: claim.Holder{PID: 1}, GoneOn: []claim.Holder{{PID: 2}}, Origin: past.Origin{Recast: "v1"},
		Talos: "v1.13.9", Lock: lock.Key(),
	}
	must.Equal(t, "about", want, r.About)
}
