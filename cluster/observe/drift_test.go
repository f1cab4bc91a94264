package observe

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/words"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	made := func(id, yaml string) func(*Found) {
		return func(f *Found) { f.Machine.Schematic = cluster.SchematicEntry{ID: id, YAML: yaml} }
	}
	type row struct {
		change func(*Found)
		want   []cluster.Reason
	}
	must.Each(t, map[string]row{
		"in sync": {func(*Found) {}, nil},
		"same version, new digest": {
			made("id-old", "- recast.lock="+clustertest.OldHash+"\n"),
			[]cluster.Reason{{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", Old: "sha256:aaaaaaaaaaaaaaaa", New: "sha256:bbbbbbbbbbbbbbbb"}},
		},
		"an unknown lock": {
			made("id-old", "- recast.lock=sha256-other\n"),
			[]cluster.Reason{{Code: "lock", Text: "extensions of another lock: sha256-other → sha256-new", Old: "sha256-other", New: "sha256-new"}},
		},
		"another schematic": {
			func(f *Found) { f.Machine.Schematic.ID = "id-old" },
			[]cluster.Reason{{Code: "schematic", Text: "schematic id-old → id-new", Old: "id-old", New: "id-new"}},
		},
		"not locked by recast": {
			made("id-new", "customization: {}\n"),
			[]cluster.Reason{{Code: "unknown-build", Text: "its schematic was not locked by recast: extension digests unknown", Old: "id-new", New: "id-new"}},
		},
		"no schematic at all": {made("", ""), []cluster.Reason{{Code: "unknown-build", Text: "its image carries no schematic: what it was built from is unknown", New: "b1"}}},
		"older Talos": {
			func(f *Found) { f.Machine.TalosVersion = "v1.13.8" },
			[]cluster.Reason{{Code: "talos-version", Text: "Talos v1.13.8 → v1.13.9", Old: "v1.13.8", New: "v1.13.9"}},
		},
		"made for another machine": {
			func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "arm64", "metal", new(true) },
			[]cluster.Reason{
				{Code: "arch", Text: "architecture arm64 → amd64", Old: "arm64", New: "amd64"},
				{Code: "platform", Text: "platform metal → nocloud", Old: "metal", New: "nocloud"},
				{Code: "secure-boot", Text: "Secure Boot on → off", Old: "on", New: "off"},
			},
		},
		"it does not say for which machine": {func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "", "", nil }, nil},
		"extensions by name and version": {
			func(f *Found) {
				f.Machine.Extensions = []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.1.0"}, {Name: "zfs", Version: "2.3"}}
			},
			[]cluster.Reason{
				{Code: "extension-version", Text: "extension iscsi-tools v0.1.0 → v0.2.0", Old: "v0.1.0", New: "v0.2.0"},
				{Code: "extension-extra", Text: "extension zfs 2.3 is not in the schematic", Old: "2.3"},
			},
		},
		"extension missing": {
			func(f *Found) { f.Machine.Extensions = nil },
			[]cluster.Reason{{Code: "extension-missing", Text: "extension iscsi-tools v0.2.0 is missing", New: "v0.2.0"}},
		},
		"boot ISO left in": {
			func(f *Found) { f.VM.Config["ide2"] = "isos:iso/recast-v1-b.iso,media=cdrom" },
			[]cluster.Reason{{Code: "boot-media", Text: "boot ISO recast-v1-b.iso is still in ide2", Old: "recast-v1-b.iso"}},
		},
		"a user's own ISO stays": {func(f *Found) { f.VM.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil},
		"unfinished": {
			func(f *Found) {
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			[]cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
		},
	}, func(t *testing.T, tc row) {
		m := clustertest.InSync()
		f := Found{Name: "wk1", Machine: &m, VM: &cluster.VM{ID: 9011, Config: map[string]string{"ide2": "none,media=cdrom"}}}
		tc.change(&f)
		got := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, f, clustertest.Past)
		must.Equal(t, "got", tc.want, got.Reasons)
		must.Equal(t, "stale", len(tc.want) > 0, got.Stale)
	})
}

// TestDiffNamesAllOfAnImage: a digest that changed hides nothing else.
func TestDiffNamesAllOfAnImage(t *testing.T) {
	t.Parallel()
	made := func(id, yaml string) cluster.SchematicEntry { return cluster.SchematicEntry{ID: id, YAML: yaml} }
	for name, tc := range map[string]struct {
		runs cluster.SchematicEntry
		want []cluster.Reason
	}{
		"a digest, an argument, META and an overlay at once": {
			made("id-old", "overlay: {name: rpi, image: sbc}\ncustomization:\n  extraKernelArgs:\n  - mitigations=off\n  - recast.lock="+clustertest.OldHash+"\n  meta: [{key: 12, value: a}]\n"),
			[]cluster.Reason{
				{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", Old: "sha256:aaaaaaaaaaaaaaaa", New: "sha256:bbbbbbbbbbbbbbbb"},
				{Code: "kernel-argument", Text: "kernel argument mitigations=off is not in the schematic", Old: "mitigations=off"},
				{Code: "meta", Text: "META value 0xc a is not in the schematic", Old: "a"},
				{Code: "overlay", Text: "image of the overlay sbc is not in the schematic", Old: "sbc"},
				{Code: "overlay", Text: "overlay rpi is not in the schematic", Old: "rpi"},
			},
		},
		"a schematic that can't be read": {
			made("id-old", "- recast.lock="+clustertest.NewHash+"\n"),
			[]cluster.Reason{{Code: "schematic", Text: "its schematic can't be compared with the lock's: not in the Image Factory's format", Old: "id-old", New: "id-new"}},
		},
	} {
		m, b := clustertest.InSync(), clustertest.WantedBuild()
		m.Schematic = tc.runs
		b.Schematic = cluster.Secret("customization: {extraKernelArgs: ['recast.lock=" + clustertest.NewHash + "']}")
		must.Equal(t, name, tc.want, Diff(cluster.Wanted{Name: "wk1", Build: b}, Found{Name: "wk1", Machine: &m}, clustertest.Past).Reasons)
	}
}

// TestDiffNamesEachPart: each part of an image that differs is named, alone and beside each other one, and nothing else is.
func TestDiffNamesEachPart(t *testing.T) {
	t.Parallel()
	overlay := cluster.LockedOverlay{Name: "rpi", Digest: "sha256:bbbbbbbbbbbbbbbb"}
	wanted := clustertest.WantedBuild()
	wanted.Overlay = overlay
	wanted.Extensions = append(wanted.Extensions, cluster.LockedExtension{Name: "agent", Version: "v1", Digest: "sha256:1111111111111111"})
	wanted.Schematic = cluster.Secret("overlay: {name: rpi, image: sbc}\ncustomization:\n  extraKernelArgs:\n  - quiet\n  - recast.lock=" + clustertest.NewHash + "\n  meta: [{key: 12, value: a}]\n  bootloader: sd-boot\n")
	parts := []struct {
		code   string
		change func(found *found)
	}{
		{"talos-version", func(f *found) { f.m.TalosVersion = "v1.13.8" }},
		{"extension-digest", func(f *found) { f.past.Extensions[1].Digest = "sha256:2222222222222222" }},
		{"extension-version", func(f *found) { f.m.Extensions[1].Version = "v0" }},
		{"extension-missing", func(f *found) { f.m.Extensions, f.past.Extensions = f.m.Extensions[1:], f.past.Extensions[1:] }},
		{"extension-extra", func(f *found) {
			f.m.Extensions = append(f.m.Extensions, cluster.ExtensionEntry{Name: "zfs", Version: "2.3"})
			f.past.Extensions = append(f.past.Extensions, cluster.LockedExtension{Name: "zfs", Version: "2.3", Digest: "sha256:3333333333333333"})
		}},
		{"kernel-argument", func(f *found) { f.text = strings.Replace(f.text, "quiet", "loud", 1) }},
		{"overlay-digest", func(f *found) { f.past.Overlay.Digest = "sha256:4444444444444444" }},
		{"overlay", func(f *found) {
			f.past.Overlay.Name, f.text = "other", strings.Replace(f.text, "name: rpi", "name: other", 1)
		}},
		{"rebuild", func(f *found) { f.past.Rebuild = 2 }},
		{"meta", func(f *found) { f.text = strings.Replace(f.text, "value: a", "value: b", 1) }},
		{"embedded-config", func(f *found) { f.text += "  embeddedMachineConfiguration: hush\n" }},
		{"bootloader", func(f *found) { f.text = strings.Replace(f.text, "sd-boot", "grub", 1) }},
		{"secure-boot", func(f *found) { f.m.SecureBoot = new(true) }},
		{"arch", func(f *found) { f.m.Arch = "arm64" }},
		{"platform", func(f *found) { f.m.Platform = "metal" }},
	}
	codes := func(changes ...func(*found)) []string {
		m := clustertest.InSync()
		f := found{m: &m, text: string(wanted.Schematic), past: cluster.LockedContent{Extensions: slices.Clone(wanted.Extensions), Overlay: overlay}}
		m.Extensions = []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}, {Name: "agent", Version: "v1"}}
		for _, change := range changes {
			change(&f)
		}
		was := f.past
		id := "id-new"
		if diff := cmp.Diff(was, cluster.LockedContent{Extensions: wanted.Extensions, Overlay: overlay}); diff != "" {
			f.text = strings.Replace(f.text, clustertest.NewHash, clustertest.OldHash, 1) // as the lock makes it
		}
		if f.text != string(wanted.Schematic) {
			id = "id-old"
		}
		m.Schematic = cluster.SchematicEntry{ID: id, YAML: f.text}
		var out []string
		for _, r := range Diff(cluster.Wanted{Name: "wk1", Build: wanted}, Found{Name: "wk1", Machine: &m}, func(hash string) (cluster.LockedContent, bool) { return was, hash == clustertest.OldHash }).Reasons {
			out = append(out, r.Code)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	for i, a := range parts {
		must.Equal(t, "codes", []string{a.code}, codes(a.change))
		for _, b := range parts[i+1:] {
			want := []string{a.code, b.code}
			if a.code == "overlay-digest" && b.code == "overlay" {
				want = []string{b.code} // of another overlay, the digest says nothing more
			}
			slices.Sort(want)
			must.Equal(t, "codes", want, codes(a.change, b.change))
		}
	}
}

// found is a running image, and what its lock says.
type found struct {
	m    *cluster.Machine
	text string // of its schematic
	past cluster.LockedContent
}

func TestDiffKeepsUnreadApartFromStale(t *testing.T) {
	t.Parallel()
	d := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, Found{Errs: []error{errors.New("no answer")}}, clustertest.Past)
	must.Equal(t, "stale", []any{false, 1}, []any{d.Stale, len(d.Unread)})
}

func TestDriftWithFiles(t *testing.T) {
	t.Parallel()
	const good, evil = "sha256:600d600d600d600d", "sha256:e711e711e711e711"
	d := Drift{Node: "wk1"}
	same := d.WithFiles(FileCheck{Files: 3, Bytes: 9, NotCompared: []string{"x"}}, nil)
	must.Equal(t, "the same", Drift{Node: "wk1", Notes: []string{"3 files of its extensions compared (9 bytes read): all are as locked", "not compared: x"}}, same)
	other := d.WithFiles(FileCheck{Files: 3, Bytes: 9, More: 2, Differ: []FileDiff{
		{Path: "/usr/local/a", Extension: "tool v1", Found: evil, Wanted: good},
	}}, nil)
	want := Drift{
		Node: "wk1", Stale: true, Notes: []string{"3 files of its extensions compared (9 bytes read): 3 differ"},
		Reasons: []cluster.Reason{
			{Code: "extension-file", Text: "/usr/local/a of extension tool v1: " + words.Short(evil) + " → " + words.Short(good), Old: evil, New: good},
			{Code: "extension-file", Text: "2 more files of extensions are not as locked"},
		},
	}
	must.Equal(t, "other", want, other)
	got := d.WithFiles(FileCheck{}, errors.New("no answer"))
	must.Equal(t, "stale, unread", []any{false, []string{"no answer"}}, []any{got.Stale, got.Unread})
}

// TestStuckVolumesAreSaid at any time: what failed while the machine starts, too, but not what waits then.
func TestStuckVolumesAreSaid(t *testing.T) {
	t.Parallel()
	m := cluster.Machine{VolumeStatuses: []cluster.VolumeStatus{
		{ID: "EPHEMERAL", Phase: "failed", Error: "block dev type mismatch: xfs != luks"},
		{ID: "STATE", Phase: "failed", Error: "no such attribute(s): system_disk"},
		{ID: "u-data", Phase: "waiting"},
		{ID: "e-backup", Phase: "missing"},
		{ID: "META", Phase: "missing"},
	}}
	for stage, want := range map[string]string{
		"running": "EPHEMERAL STATE u-data e-backup",
		"booting": "EPHEMERAL",
	} {
		m.Stage = stage
		var got []string
		for _, text := range stuckVolumes(m) {
			id, _, _ := strings.Cut(strings.TrimPrefix(text, "its volume "), " ")
			got = append(got, id)
		}
		must.Equal(t, stage, want, strings.Join(got, " "))
	}
}

func TestHostnameOfAnotherNode(t *testing.T) {
	t.Parallel()
	wanted := []cluster.Wanted{{Name: "wk1"}, {Name: "wk2"}}
	for hostname, want := range map[string]string{"": "", "wk1": "", "WK1.example.com": "", "wk2": "wk2", "Wk2.example.com": "wk2", "else": ""} {
		must.Equal(t, hostname, want, otherNode(hostname, "wk1", wanted))
	}
}

func TestNoAddress(t *testing.T) {
	t.Parallel()
	f := Found{Name: "wk1"}
	ReadMachine(t.Context(), Sources{}, nil, cluster.Wanted{Name: "wk1"}, &f)
	must.Be(t, len(f.Errs) == 1 && strings.Contains(clustertest.Message(f.Errs[0]), "no address known"), "%v", f.Errs)
	must.Contain(t, "hints", strings.Join(fault.Hints(f.Errs[0]), "\n"), "kubectl get node wk1")
}

// TestRunsFromISO: nothing else shows an interrupted installation.
func TestRunsFromISO(t *testing.T) {
	t.Parallel()
	m := clustertest.InSync()
	m.FromISO, m.BootEntry = true, ""
	for stage, want := range map[string]bool{"booting": true, "installing": true, "rebooting": true, "running": false} {
		m.Stage = stage
		must.Equal(t, stage, want, m.IsBeingInstalled())
	}
	reasons := cluster.DiffInstalled(clustertest.WantedBuild(), m.RunningSystem, "")
	must.Hold(t, len(reasons) != 0 && reasons[0].Code == "boot-iso" && rollable(reasons[0].Code), "%+v", reasons)
}

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
	type row struct {
		change func(*cluster.Wanted, *Found)
		want   []cluster.Reason
		notes  []string
	}
	must.Each(t, map[string]row{
		"as rolled":     {change: func(*cluster.Wanted, *Found) {}},
		"no boot order": {change: func(_ *cluster.Wanted, f *Found) { delete(f.VM.Config, "boot") }},
		"legacy order":  {change: func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "cdn" }},
		"CD first": {
			change: func(_ *cluster.Wanted, f *Found) { f.VM.Config["boot"] = "order=ide2;scsi0" },
			want:   []cluster.Reason{{Code: "boot-order", Text: "it boots from ide2 before its system disk scsi0 (only recreate or reimage fixes that)", Old: "ide2", New: "scsi0"}},
		},
		"unproven system disk": {
			change: func(_ *cluster.Wanted, f *Found) { f.Machine.SystemDisk, f.VM.Config["boot"] = "", "order=ide2;scsi0" },
			notes:  []string{`VM 9011 "wk1" on pve1: system disk can't be proven: the machine does not name it`},
		},
		"small system disk": {
			change: func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 16 },
			want:   []cluster.Reason{{Code: "system-disk-size", Text: "system disk scsi0: 10G → 16G (only recreate or reimage fixes that)", Old: "10G", New: "16G"}},
		},
		"large system disk": {
			change: func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 8 },
			notes:  []string{"system disk scsi0 has 10G, more than the 8G wanted: recast never shrinks a disk"},
		},
		"any size": {change: func(w *cluster.Wanted, _ *Found) { w.SystemGiB = 0 }},
		"not rebooted yet": {
			change: func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "talos-v1.14.0.efi" },
			want: []cluster.Reason{{
				Code: "pending-reboot", Text: "talos-v1.14.0.efi is installed, but talos-v1.13.9.efi is running: the next reboot starts the other system",
				Old: "talos-v1.13.9.efi", New: "talos-v1.14.0.efi",
			}},
		},
		"next boot unknown": {change: func(_ *cluster.Wanted, f *Found) { f.Machine.NextBoot = "" }},
		"Kubernetes": {
			change: func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "v1.36.0" },
			want:   []cluster.Reason{{Code: "kubernetes-version", Text: "Kubernetes v1.35.4 → v1.36.0", Old: "v1.35.4", New: "v1.36.0"}},
		},
		"any Kubernetes": {change: func(w *cluster.Wanted, _ *Found) { w.Kubernetes = "" }},
		"a mark": {
			change: func(_ *cluster.Wanted, f *Found) { f.Node.Mark = &cluster.Mark{Run: "r1", Strategy: cluster.InPlace} },
			want:   []cluster.Reason{{Code: "cordoned", Text: "run r1 cordoned it to roll it in-place and did not finish", Old: "r1"}},
		},
		"a user's cordon": {change: func(_ *cluster.Wanted, f *Found) { f.Node.Unschedulable = true }},
		"a mark of an open replacement": {
			change: func(_ *cluster.Wanted, f *Found) {
				f.Node.Mark = &cluster.Mark{Run: "r1"}
				f.VM.Config["boot"] = "order=ide2;scsi0"
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			want: []cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
		},
	}, func(t *testing.T, tc row) {
		w, f := rolledNode()
		tc.change(&w, &f)
		got := Diff(w, f, clustertest.Past)
		must.Equal(t, "got", tc.want, got.Reasons)
		must.Equal(t, "got", tc.notes, got.Notes)
	})
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
			must.Equal(t, name, "install-image", r.Code)
			text.WriteString(r.Text)
		}
		must.Equal(t, name, tc.want, text.String())
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
		return strings.HasPrefix(note, "not compared, because that needs a talosconfig with the role os:admin: its machine configuration")
	}) {
		t.Errorf("%+v", d)
	}
}

func TestKubernetesVersionIsNotForARoll(t *testing.T) {
	t.Parallel()
	w, f := rolledNode()
	w.Kubernetes = "v1.36.0"
	d := Diff(w, f, clustertest.Past)
	must.Hold(t, d.Stale && !d.Rollable() && !rollable("kubernetes-version") && rollable("talos-version"),
		"a roll can do something about %+v", d)
	f.Machine.TalosVersion = "v1.13.8"
	must.Equal(t, "a roll can renew an old Talos", true, Diff(w, f, clustertest.Past).Rollable())
}

// lockedYAML is a schematic with a lock.
func lockedYAML(hash string) string {
	return "customization:\n    extraKernelArgs:\n        - recast.lock=" + hash + "\n"
}

func knownBuild(lock string, present bool, id, hash, talos string) KnownBuild {
	return KnownBuild{
		Lock: lock, Present: present, Schematic: "default", File: "schematics/base.yaml", ISOSHA256: "9999", Signer: "5555",
		Build: cluster.Build{
			Arch: "amd64",
			ID:   id, TalosVersion: talos, SchematicID: idOf(lockedYAML(hash)), LockHash: hash, Installer: "mirror.example/talos@sha256:1111", ISOName: "recast.iso",
			Extensions: []cluster.LockedExtension{{Name: "tool", Version: "v1", Ref: "ghcr.io/acme/tool", Digest: "sha256:2222"}},
		},
	}
}

// layers is a list of extensions with the schematic's own entry.
func layers(author, yaml string, more ...ExtensionLayer) []ExtensionLayer {
	return append(more, ExtensionLayer{Name: "schematic", Version: idOf(yaml), Author: author, ExtraInfo: yaml})
}

// chain is the links of a provenance, one per line: name, certainty, text, details.
func chain(p Provenance) string {
	var b strings.Builder
	for _, l := range p.Links {
		fmt.Fprintf(&b, "%s %s: %s\n", l.Name, l.Certainty, l.Text)
		for _, d := range l.Details {
			fmt.Fprintf(&b, "  %s\n", d)
		}
	}
	return b.String()
}

const factoryAuthor = "Image Factory (https://factory.talos.dev)"

var (
	tool         = ExtensionLayer{Name: "tool", Version: "v1", Author: "Acme"}
	presentBuild = knownBuild("recast.lock", true, "build-2", "sha256-b", "v1.13.9")
	pastBuild    = knownBuild(".recast/locks/1.lock", false, "build-1", "sha256-a", "v1.13.8")
	booted       = BootClaims{Entry: "talos-v1.13.9.efi", UKI: new(true), Cmdline: true}
)

func withLock(hash string) BootClaims {
	b := booted
	b.Locks = []string{hash}
	return b
}

func claims(talos string, b BootClaims, list ...ExtensionLayer) Claims {
	return Claims{TalosVersion: talos, Arch: "amd64", Platform: "nocloud", Layers: list, Booted: b}
}

// withResource are claims with the resource that Talos 1.14 makes from the schematic's entry.
func withResource(c Claims, schematicID string) Claims {
	c.Factory = &FactoryClaim{SchematicID: schematicID}
	return c
}

type traceCase struct {
	claims Claims
	files  *FileCheck
	unread string
	noLock bool
	origin Origin
	build  string
	has    []string // lines of the chain or of the summary
	but    string   // links that are not as certain as usual
}

// traceCases are what a node says, and how well the chain from it to a lock holds.
var traceCases = map[string]traceCase{
	"what the lock wants": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		has: []string{
			"lock proven: recast.lock wants schematic default (schematics/base.yaml), Talos v1.13.9: build build-2",
			"  extension tool v1: ghcr.io/acme/tool@sha256:2222", "  installer mirror.example/talos@sha256:1111",
			"  its signature was verified, key sha256:5555", "  boot ISO recast.iso sha256:9999",
			"schematic claimed: the image says that it was built by Image Factory at https://factory.talos.dev from schematic " + idOf(lockedYAML("sha256-b")),
			"  the text that it carries makes that ID", "  recast.lock=sha256-b",
			"build claimed: that schematic is build build-2, the one that recast.lock wants",
			"extensions claimed: the node lists 1 extension, by name and version: those of the build", "  tool v1 by Acme",
			"cmdline claimed: the kernel's command line has the same recast.lock",
			"files unknown: the files of its extensions were not compared: --deep does",
			"it claims the build that recast.lock wants", "proven about the node: nothing, all of it is what the image says of itself",
		},
	},
	"what the lock wants, files compared": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		files: &FileCheck{Files: 3, Bytes: 9, NotCompared: []string{"1 files of x"}}, but: "files proven",
		has: []string{
			"files proven: all 3 files of its extensions are those of the images that recast.lock pins by digest", "  not compared: 1 files of x",
			"proven: the bytes of its extensions' files. Not proven, only claimed: Talos itself, its kernel and its arguments",
		},
	},
	"a label that lies": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2",
		files: &FileCheck{Files: 1, Differ: []FileDiff{{Path: "/usr/local/a", Extension: "tool v1", Found: "sha256:aa", Wanted: "sha256:bb"}}, More: 2}, but: "files contradicted",
		has: []string{
			"files contradicted: 3 files of its extensions are not those of the images that recast.lock pins by digest",
			"  /usr/local/a of extension tool v1: sha256:aa → sha256:bb", "  2 more",
			"contradicted: files: the node's answers contradict each other, so nothing that it says about its image can be relied on",
		},
	},
	"files that can't be read": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", unread: "not authorized",
		has: []string{"files unknown: the files of its extensions could not be compared: not authorized"},
	},
	"a past lock": {
		claims: claims("v1.13.8", booted, layers("recast", lockedYAML("sha256-a"), tool)...), origin: FromLock, build: "build-1", but: "cmdline contradicted",
		has: []string{
			"schematic claimed: the image says that it was built by recast, with the Talos imager from schematic " + idOf(lockedYAML("sha256-a")),
			"build claimed: that schematic is build build-1 of .recast/locks/1.lock: schematic default, Talos v1.13.8",
			"cmdline contradicted: the schematic has recast.lock, the command line of the unified kernel image that was booted has not",
			"it claims build build-1 of .recast/locks/1.lock, not what recast.lock wants",
		},
	},
	"a past lock, no present one": {
		claims: claims("v1.13.8", withLock("sha256-a"), layers(factoryAuthor, lockedYAML("sha256-a"), tool)...), noLock: true, origin: FromLock, build: "build-1", but: "lock unknown",
		has: []string{"lock unknown: there is no recast.lock that says what the node should run"},
	},
	"GRUB": {
		claims: claims("v1.13.9", BootClaims{UKI: new(false), Cmdline: true}, layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", but: "boot unknown, cmdline unknown",
		has: []string{
			"boot unknown: it does not say which boot entry it was started from: a boot ISO and GRUB have none", "  not from a unified kernel image",
			"cmdline unknown: the kernel's command line has no recast.lock: GRUB drops a schematic's arguments on an upgrade, so that says nothing",
		},
	},
	"other extensions than its build has, and another Talos": {
		claims: claims("v1.13.7", withLock("sha256-c"), layers(factoryAuthor, lockedYAML("sha256-b"), ExtensionLayer{Name: "tool", Version: "v0"}, ExtensionLayer{Name: "modules.dep", Version: "6.18"})...),
		origin: FromLock,
		build:  "build-2", but: "extensions contradicted, talos contradicted, cmdline contradicted",
		has: []string{
			"  extension tool v0 → v1", "  the build that it claims is of Talos v1.13.9 for amd64",
			"cmdline contradicted: the kernel's command line has recast.lock=sha256-c, the schematic sha256-b",
			"contradicted: extensions, talos, cmdline: the node's answers contradict each other, so nothing that it says about its image can be relied on",
		},
	},
	"a configuration embedded without the build's having one": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool, ExtensionLayer{Name: "embedded-config", Version: "beef"})...), origin: FromLock, build: "build-2", but: "extensions contradicted",
		has: []string{"  extension embedded-config beef is not in the schematic"},
	},
	"a system that waits for a reboot, Secure Boot": {
		claims: claims("v1.13.9", BootClaims{Entry: "talos-v1.13.9.efi", Next: "talos-v1.13.9~1.efi", SecureBoot: true, UKI: new(true)}, layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), origin: FromLock, build: "build-2", but: "cmdline unknown",
		has: []string{
			"  the next boot starts another system: talos-v1.13.9~1.efi", "  with Secure Boot: the firmware verified the image against its keys",
			"cmdline unknown: the kernel's command line could not be read",
		},
	},
	"an unknown lock": {
		claims: claims("v1.13.9", withLock("sha256-z"), layers(factoryAuthor, lockedYAML("sha256-z"), tool)...), origin: FromOtherLock, but: "build unknown",
		has: []string{
			"build unknown: recast locked that schematic, but no lock at hand made it: the digests of its extensions are unknown",
			"extensions claimed: the node lists 1 extension, by name and version; no digests are known to compare them with",
			"it claims a lock that is not at hand: another machine's .recast, another branch or another project has it",
		},
	},
	"other arguments with the same digests": {
		claims: claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, "customization:\n    extraKernelArgs: [quiet, recast.lock=sha256-b ]\n", tool)...), origin: FromOtherLock, but: "build unknown",
		has: []string{"build unknown: no lock at hand has that schematic; one with the same extension digests is build build-2 of recast.lock"},
	},
	"a schematic that is not locked": {
		claims: claims("v1.13.9", booted, layers("Image Factory Enterprise", "customization: {}\n", tool)...), origin: FromSchematic, but: "build unknown",
		has: []string{
			"schematic claimed: the image says that it was built by Image Factory Enterprise from schematic " + idOf("customization: {}\n"),
			"build unknown: recast did not lock that schematic: the digests of its extensions are unknown",
			"  it asks for extensions: acme/tool", "  it asks for kernel arguments: none",
			"cmdline claimed: the kernel's command line has no recast.lock either",
			"it claims someone's schematic, which recast did not lock",
		},
	},
	"a schematic that can't be read": {
		claims: claims("v1.13.9", booted, layers("", "rubbish", tool)...), origin: FromSchematic, but: "build unknown",
		has: []string{"  its text is no schematic that this recast understands", "schematic claimed: the image says that it was built by nobody named from schematic " + idOf("rubbish")},
	},
	"a schematic without its text": {
		claims: claims("v1.13.9", booted, tool, ExtensionLayer{Name: "schematic", Version: "cafe", Author: factoryAuthor}), origin: FromSchematic, but: "build unknown",
		has: []string{"  it does not carry the schematic's text"},
	},
	"a text of another schematic": {
		claims: claims("v1.13.9", booted, ExtensionLayer{Name: "schematic", Version: "cafe", Author: factoryAuthor, ExtraInfo: "customization: {}\n"}), origin: FromNowhere, but: "schematic contradicted, build unknown",
		has: []string{"  the text that it carries makes another ID: " + idOf("customization: {}\n")},
	},
	"Talos 1.14's resource": {
		claims: withResource(claims("v1.13.9", withLock("sha256-b"), layers(factoryAuthor, lockedYAML("sha256-b"), tool)...), "cafe"),
		origin: FromLock, build: "build-2", but: "schematic contradicted",
		has: []string{"schematic contradicted: its list of extensions has schematic " + idOf(lockedYAML("sha256-b")) + ", its resource ImageFactorySchematic cafe"},
	},
	"two schematics": {
		claims: claims("v1.13.9", booted, layers(factoryAuthor, lockedYAML("sha256-b"), layers("recast", lockedYAML("sha256-a"), tool)...)...), origin: FromNowhere, but: "schematic contradicted, build none",
		has: []string{
			"schematic contradicted: the image carries 2 schematics: it was built from another image that had one already",
			"  schematic " + idOf(lockedYAML("sha256-a")) + " by recast, with the Talos imager",
		},
	},
	"a build of the imager": {
		claims: claims("v1.13.9", booted, tool), origin: FromImager, but: "schematic unknown, build none",
		has: []string{
			"schematic unknown: the image carries no schematic: someone built it with the Talos imager, and nothing in it says from what",
			"files unknown: there is nothing to compare the files of its extensions with",
			"it was built by hand with the Talos imager: what from is unknown",
		},
	},
	"a release": {
		claims: claims("v1.13.9", booted), origin: FromRelease, but: "schematic unknown, build none",
		has: []string{"it looks like an image of a Talos release, which nothing in it confirms"},
	},
}

// certain is how certain the links usually are, except for those of but; "none": there is no such link.
func certain(but string) []string {
	links := []string{"lock proven", "schematic claimed", "build claimed", "extensions claimed", "talos claimed", "boot claimed", "cmdline claimed", "files unknown"}
	for other := range strings.SplitSeq(but, ", ") {
		name, _, _ := strings.Cut(other, " ")
		for i, usual := range links {
			if strings.HasPrefix(usual, name+" ") {
				links[i] = other
			}
		}
	}
	return slices.DeleteFunc(links, func(l string) bool { return strings.HasSuffix(l, " none") })
}

func TestTrace(t *testing.T) {
	t.Parallel()
	must.Each(t, traceCases, func(t *testing.T, c traceCase) {
		trail := Trail{Known: []KnownBuild{presentBuild, pastBuild}, Claims: c.claims, Files: c.files, Unread: c.unread, Describe: func(text string) (Described, bool) {
			return Described{Extensions: []string{"acme/tool"}}, text != "rubbish"
		}}
		if !c.noLock {
			trail.Wanted = &presentBuild
		}
		got := Trace(trail)
		must.Equal(t, "origin, build, unread", []any{c.origin, c.build, c.unread}, []any{got.Origin, got.Build, got.Unread})
		links := cluster.Each(got.Links, func(l ProvenanceLink) string { return l.Name + " " + string(l.Certainty) })
		must.Equal(t, "certainty", certain(c.but), links)
		text := "\n" + chain(got) + strings.Join(got.Summary, "\n") + "\n"
		for _, line := range c.has {
			must.Contain(t, "text", text, "\n"+line+"\n")
		}
	})
}

// TestTraceChoosesTheLockThatFits: locks of two Talos versions have the same schematic.
func TestTraceChoosesTheLockThatFits(t *testing.T) {
	t.Parallel()
	older, newer := knownBuild(".recast/locks/1.lock", false, "build-1", "sha256-a", "v1.13.8"), knownBuild("recast.lock", true, "build-2", "sha256-a", "v1.13.9")
	twin := knownBuild(".recast/locks/2.lock", false, "build-2", "sha256-a", "v1.13.9")
	for version, want := range map[string]string{"v1.13.8": older.Lock, "v1.13.9": newer.Lock, "v1.13.7": newer.Lock} {
		trail := Trail{Known: []KnownBuild{older, twin, newer}, Claims: Claims{TalosVersion: version, Layers: layers("x", lockedYAML("sha256-a"))}}
		got := trail.Claimant()
		must.Hold(t, got != nil && got.Lock == want, "Talos %s: %+v, want that of %s", version, got, want)
	}
}

// TestSharedBuild: of a lock that came over the mirror nothing is told that its hashes do not prove.
func TestSharedBuild(t *testing.T) {
	t.Parallel()
	shared := pastBuild
	shared.Shared = true
	c := claims("v1.13.8", withLock("sha256-a"), append(layers(factoryAuthor, lockedYAML("sha256-a")), tool)...)
	got := chain(Trace(Trail{Wanted: &presentBuild, Known: []KnownBuild{presentBuild, shared}, Claims: c}))
	_, node, _ := strings.Cut(got, "schematic ")
	_, node, _ = strings.Cut(node, "\nschematic ")
	if !strings.Contains(node, "a copy in the mirror") || strings.Contains(node, "was verified") || strings.Contains(node, "sha256:1111") || strings.Contains(node, "sha256:9999") {
		t.Error(got)
	}
}
