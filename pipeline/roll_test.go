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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
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
		if got := clustertest.Message(err); (want == "") != (err == nil) || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", run, got, want)
		}
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
		if err := w.requireWayBack(vms, nil); (err != nil) != refused || refused && fault.KindOf(err) != fault.Refused {
			t.Errorf("%s: %v", node, err)
		}
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
		if got != c.want || errors.Is(err, cluster.ErrConfigDamaged) != c.damaged || err != nil && !c.damaged {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// fakePuller has one image for every reference.
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

// extensionImage returns the flattened tar of an extension's image.
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
	if !errors.Is(err, wrong) || !strings.HasPrefix(err.Error(), "read the locked image of extension tool: ") {
		t.Errorf("err = %v", err)
	}
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
