package observe

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
)

// rolledNode is a node as a finished roll leaves it.
func rolledNode() (cluster.Wanted, Found) {
	m := clustertest.InSync()
	m.SystemDisk = "sda"
	m.Disks = []cluster.MachineDisk{{Device: "sda", Serial: "sys"}}
	m.BootEntry, m.NextBoot = "talos-v1.13.9.efi", "talos-v1.13.9.efi"
	b := clustertest.WantedBuild()
	b.Installer = "mirror.example/talos/installer@sha256:cccc"
	m.InstallImage = b.Installer
	vm := cluster.VM{ID: 9011, Name: "wk1", Host: "pve1", Config: map[string]string{
		"scsi0": "fast:vm-9011-disk-0,serial=sys,size=10G", "ide2": "none,media=cdrom", "boot": "order=scsi0;ide2;net0",
	}}
	w := cluster.Wanted{Name: "wk1", Build: b, Kubernetes: "v1.35.4", SystemGiB: 10}
	return w, Found{Name: "wk1", VM: &vm, Machine: &m, Node: &cluster.KubeNode{Name: "wk1", KubeletVersion: "v1.35.4"}}
}

func TestDiffOfBootAndNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*cluster.Wanted, *Found)
		want   []cluster.Reason
		notes  []string
	}{
		"as rolled":     {func(*cluster.Wanted, *Found) {}, nil, nil},
		"no boot order": {func(_ *cluster.Wanted, f *Found) { delete(f.VM.Config, "boot") }, nil, nil},
		"legacy order":  {func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "cdn" }, nil, nil},
		"CD first": {
			func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "order=ide2;scsi0" },
			[]cluster.Reason{{Code: "boot-order", Text: "it boots from ide2 before its system disk scsi0 (only recreate or reimage mends that)", Old: "ide2", New: "scsi0"}},
			nil,
		},
		"unproven system disk": {
			func(_ *cluster.Wanted, f *Found) { f.Machine.SystemDisk, f.VM.Config["boot"] = "", "order=ide2;scsi0" }, nil,
			[]string{`VM 9011 "wk1" on pve1: system disk can't be proven: the machine does not name it`},
		},
		"small system disk": {
			func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 16 },
			[]cluster.Reason{{Code: "system-disk-size", Text: "system disk scsi0: 10G → 16G (only recreate or reimage mends that)", Old: "10G", New: "16G"}},
			nil,
		},
		"large system disk": {
			func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 8 }, nil,
			[]string{"system disk scsi0 has 10G, more than the 8G wanted: recast never makes one smaller"},
		},
		"any size": {func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 0 }, nil, nil},
		"not rebooted yet": {
			func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "talos-v1.14.0.efi" },
			[]cluster.Reason{{
				Code: "pending-reboot", Text: "talos-v1.14.0.efi is installed, but talos-v1.13.9.efi is running: the next reboot starts the other system",
				Old: "talos-v1.13.9.efi", New: "talos-v1.14.0.efi",
			}},
			nil,
		},
		"next boot unknown": {func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "" }, nil, nil},
		"Kubernetes": {
			func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "v1.36.0" },
			[]cluster.Reason{{Code: "kubernetes-version", Text: "Kubernetes v1.35.4 → v1.36.0", Old: "v1.35.4", New: "v1.36.0"}},
			nil,
		},
		"any Kubernetes": {func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "" }, nil, nil},
		"a mark": {
			func(_ *cluster.Wanted, f *Found) { f.Node.Mark = &cluster.Mark{Run: "r1", Strategy: cluster.InPlace} },
			[]cluster.Reason{{Code: "cordoned", Text: "run r1 cordoned it to roll it in-place and did not finish", Old: "r1"}},
			nil,
		},
		"a user's cordon": {func(_ *cluster.Wanted, f *Found) { f.Node.Unschedulable = true }, nil, nil},
		"a mark of an open replacement": {
			func(_ *cluster.Wanted, f *Found) {
				f.Node.Mark = &cluster.Mark{Run: "r1"}
				f.VM.Config["boot"] = "order=ide2;scsi0"
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			[]cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, f := rolledNode()
			tc.change(&w, &f)
			got := Diff(w, f, clustertest.Past)
			if diff := cmp.Diff(tc.want, got.Reasons); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.notes, got.Notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDiffOfTheInstallImage(t *testing.T) {
	t.Parallel()
	const pinned = "mirror.example/talos/installer@sha256:cccc"
	for name, tc := range map[string]struct {
		image, installer, want string // want: the reason's text
	}{
		"the digest":                   {pinned, pinned, ""},
		"the digest elsewhere":         {"factory.talos.dev/metal-installer/id-new@sha256:cccc", pinned, ""},
		"tag and digest":               {"mirror.example/talos/installer:v1@sha256:cccc", pinned, ""},
		"another digest":               {"mirror.example/talos/installer@sha256:dddd", pinned, "install image of its configuration: mirror.example/talos/installer@sha256:dddd → " + pinned},
		"the factory's tag":            {"factory.talos.dev/nocloud-installer/id-new:v1.13.9", pinned, ""},
		"the factory's tag, not built": {"factory.talos.dev/nocloud-installer/id-new:v1.13.9", "", ""},
		"another version":              {"factory.talos.dev/nocloud-installer/id-new:v1.13.8", "", "install image of its configuration: factory.talos.dev/nocloud-installer/id-new:v1.13.8 → id-new:v1.13.9"},
		"another schematic":            {"factory.talos.dev/nocloud-installer/id-old:v1.13.9", pinned, "install image of its configuration: factory.talos.dev/nocloud-installer/id-old:v1.13.9 → " + pinned},
		"the bare installer":           {"ghcr.io/siderolabs/installer:v1.13.9", pinned, "install image of its configuration: ghcr.io/siderolabs/installer:v1.13.9 → " + pinned},
		"a digest, not built":          {"mirror.example/talos/installer@sha256:dddd", "", ""},
		"not read":                     {"", pinned, ""},
	} {
		w, f := rolledNode()
		w.Build.Installer, f.Machine.InstallImage = tc.installer, tc.image
		var text strings.Builder
		for _, r := range Diff(w, f, clustertest.Past).Reasons {
			if r.Code != "install-image" {
				t.Errorf("%s: %+v", name, r)
			}
			text.WriteString(r.Text)
		}
		if text.String() != tc.want {
			t.Errorf("%s: %q, want %q", name, text.String(), tc.want)
		}
	}
}

// TestDiffOfTheInstallImageUnused: no installer has run on a disk that was made from a disk image.
func TestDiffOfTheInstallImageUnused(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	f.Machine.InstallImage, f.Machine.FromImage = "ghcr.io/siderolabs/installer:v1.13.8", true
	reasons := Diff(w, f, clustertest.Past).Reasons
	if len(reasons) != 1 || !strings.HasSuffix(reasons[0].Text, " (its system disk was made from a disk image: only a machine that is reset would install that)") {
		t.Errorf("%+v", reasons)
	}
}

// TestDiffOfAHiddenConfiguration: what a talosconfig may not read is noted, and is no drift.
func TestDiffOfAHiddenConfiguration(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	f.Machine.ConfigHidden = true
	d := Diff(w, f, clustertest.Past)
	if d.Stale || len(d.Unread) > 0 || !slices.ContainsFunc(d.Notes, func(note string) bool {
		return strings.HasPrefix(note, "not compared, for it takes a talosconfig with the role os:admin: its machine configuration")
	}) {
		t.Errorf("%+v", d)
	}
}

func TestKubernetesVersionIsNotForARoll(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	w.Kubernetes = "v1.36.0"
	d := Diff(w, f, clustertest.Past)
	if !d.Stale || d.Rollable() || rollable("kubernetes-version") || !rollable("talos-version") {
		t.Errorf("a roll can do something about %+v", d)
	}
	f.Machine.TalosVersion = "v1.13.8"
	if !Diff(w, f, clustertest.Past).Rollable() {
		t.Error("a roll can do nothing about an old Talos")
	}
}
