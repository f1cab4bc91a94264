package talos_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/talos"
)

// A control plane is upgraded in place, then rolled back: its state at each step,
// above all between the installation and the reboot.
func TestInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		before := l.running(c, cpAddr)
		if before.NextBoot == "" || before.NextBoot != before.BootEntry {
			t.Errorf("booted %q, next %q", before.BootEntry, before.NextBoot)
		}
		var said []string
		say := func(line string) { said = append(said, line) }
		if ok, err := c.PullInstaller(ctx, cpAddr, cpUUID, nextInstaller, say); !ok || err != nil || len(said) == 0 {
			t.Fatalf("supported = %t, err = %v, said %q", ok, err, said)
		}
		if reboots, err := c.Install(ctx, cpAddr, cpUUID, nextInstaller, "", say); reboots || err != nil {
			t.Fatalf("reboots = %t, err = %v", reboots, err)
		}
		pending := l.running(c, cpAddr)
		if pending.BootEntry != before.BootEntry || pending.NextBoot == before.NextBoot || pending.NextBoot != strings.ToLower(pending.NextBoot) {
			t.Errorf("installed: booted %q, next %q", pending.BootEntry, pending.NextBoot)
		}
		if err := c.Reboot(ctx, cpAddr, cpUUID, ""); err != nil {
			t.Fatal(err)
		}
		upgraded := l.rebooted(c, before.BootID)
		if upgraded.BootEntry != pending.NextBoot || upgraded.NextBoot != pending.NextBoot || upgraded.Schematic.ID != "beef" {
			t.Errorf("upgraded: booted %q, next %q, schematic %s", upgraded.BootEntry, upgraded.NextBoot, upgraded.Schematic.ID)
		}
		if err := c.Rollback(ctx, cpAddr, cpUUID); err != nil {
			t.Fatal(err)
		}
		if back := l.rebooted(c, upgraded.BootID); back.BootEntry != before.BootEntry || back.Schematic.ID != "cafe" {
			t.Errorf("rolled back: booted %q, schematic %s", back.BootEntry, back.Schematic.ID)
		}
	})
}

func (l *lab) rebooted(c *talos.Client, bootID string) cluster.Machine {
	l.t.Helper()
	return await(l.t, func() (cluster.Machine, error) { return cluster.ReadMachine(l.t.Context(), c, cpAddr) },
		func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready && m.BootID != bootID })
}

// The configuration of a node in use is replaced, and only by one that Talos accepts.
func TestReplaceConfig(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		before := l.running(c, cpAddr)
		config, err := c.MachineConfig(ctx, cpAddr)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := c.PatchConfig(config, cluster.ConfigPatch{Installer: nextInstaller})
		if err != nil {
			t.Fatal(err)
		}
		patched = append(patched, "---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: EPHEMERAL\nencryption:\n  provider: luks2\n  keys:\n    - {slot: 0, tpm: {}, lockToState: true}\n"...)
		if err := c.ReplaceConfig(ctx, cpAddr, cpUUID, patched); err != nil {
			t.Fatal(err)
		}
		stored, err := c.MachineConfig(ctx, cpAddr)
		if err != nil || !bytes.Equal(stored, patched) {
			t.Errorf("stored configuration differs from the applied one; err = %v", err)
		}
		now := l.running(c, cpAddr)
		if now.InstallImage != nextInstaller || now.BootID != before.BootID || before.Encryption != nil {
			t.Errorf("before %+v, after %+v", before, now)
		}
		encrypted := []cluster.Encryption{{Volume: "EPHEMERAL", Keys: []string{"tpm"}, LockToState: true}}
		if diff := cmp.Diff(encrypted, now.Encryption); diff != "" {
			t.Errorf("encryption (-want +got):\n%s", diff)
		}
		if err := c.ReplaceConfig(ctx, cpAddr, cpUUID, cluster.Secret("machine: {type: none}")); err == nil {
			t.Error("a broken configuration was accepted")
		}
	})
}

// The lab's etcd as the client sees it, complete and broken.
func TestEtcdOfTheLab(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		l.running(c, cpAddr)
		members, err := c.EtcdMembers(ctx, cpAddr)
		if err != nil || len(members) != 1 {
			t.Fatalf("members = %+v, err = %v", members, err)
		}
		want := []cluster.EtcdMember{{ID: members[0].ID, Name: "cp1", Peers: []string{"https://127.42.7.11:2380"}}}
		if diff := cmp.Diff(want, members); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
		status, err := c.EtcdStatus(ctx, cpAddr)
		if err != nil || status.MemberID != members[0].ID || status.Leader != members[0].ID || status.Version == "" || status.DBBytes == 0 || status.Errors != nil {
			t.Errorf("status = %+v, err = %v", status, err)
		}
		var whole bytes.Buffer
		if err := c.EtcdSnapshot(ctx, cpAddr, 42, &whole); err == nil || whole.Len() > 0 || !strings.Contains(err.Error(), "answers there now, not 2a") {
			t.Error(err)
		}
		if err := c.EtcdSnapshot(ctx, cpAddr, 0, &whole); err != nil || whole.Len() == 0 {
			t.Errorf("snapshot of %d bytes, err = %v", whole.Len(), err)
		}
		if err := c.EtcdForfeit(ctx, cpAddr, cpUUID); err == nil || !strings.Contains(err.Error(), "only one member") {
			t.Errorf("forfeit: err = %v", err)
		}
		l.fw.BreakEtcd(9000, talosapi.EtcdFault{NoSpace: true, Snapshot: talosapi.SnapshotBroken})
		status, err = c.EtcdStatus(ctx, cpAddr)
		if err != nil || !strings.Contains(strings.Join(status.Errors, "; "), "alarm NOSPACE on member cp1") {
			t.Errorf("status = %+v, err = %v", status, err)
		}
		var part bytes.Buffer
		if err := c.EtcdSnapshot(ctx, cpAddr, 0, &part); err == nil || part.Len() >= whole.Len() {
			t.Errorf("broken snapshot of %d of %d bytes, err = %v", part.Len(), whole.Len(), err)
		}
	})
}
