package talos_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/talos"
)

// A blank machine with a data disk is configured and becomes a node: everything that
// it reports on the way.
func TestBlankMachineBecomesNode(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		l.running(c, cpAddr)
		l.power("1F", workerUUID,
			drive("virtio0", "recast-1", 10, nil), drive("virtio1", "data-wk1", 20, talosapi.DataDisk("EPHEMERAL", []byte("precious"))))

		blank := l.maintenance(c, workerAddr)
		want := cluster.Machine{
			MachineStanding: cluster.MachineStanding{UUID: workerUUID, Stage: "maintenance", Ready: true},
			RunningSystem: cluster.RunningSystem{
				TalosVersion: version, Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), FromISO: true,
				Schematic:  cluster.SchematicEntry{ID: "cafe", YAML: image().SchematicYAML},
				Extensions: []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.2.0"}, {Name: "qemu-guest-agent", Version: "10.0.2"}},
			},
			Disks: []cluster.MachineDisk{
				{Device: "vda", Serial: "recast-1", SizeBytes: 10 << 30, Blank: true}, {Device: "vdb", Serial: "data-wk1", SizeBytes: 20 << 30},
			},
			Volumes:        []cluster.Volume{{Device: "vdb1", Disk: "vdb", Label: "EPHEMERAL", Format: "xfs"}},
			VolumeStatuses: []cluster.VolumeStatus{{ID: "META", Type: "partition", Phase: "missing"}, {ID: "STATE", Type: "partition", Phase: "missing"}},
		}
		ignore := cmp.Options{
			cmpopts.IgnoreFields(cluster.Machine{}, "BootID", "Hostname"), cmpopts.IgnoreFields(cluster.MachineDisk{}, "BusPath"),
			cmpopts.IgnoreFields(cluster.RunningSystem{}, "Cmdline"), cmpopts.IgnoreFields(cluster.Volume{}, "PartitionUUID", "FilesystemUUID"),
		}
		if system, err := cluster.ReadCompared(ctx, c, cpAddr); err != nil || system.FromISO {
			t.Errorf("what runs from a disk: %+v, %v", system, err)
		}
		if diff := cmp.Diff(want, blank.Machine, ignore); diff != "" {
			t.Errorf("blank machine (-want +got):\n%s", diff)
		}
		if blank.Volumes[0].PartitionUUID == "" || blank.Volumes[0].FilesystemUUID == "" || blank.Disks[0].BusPath != "/pci0000:00/0000:00:0a.0/virtio2" {
			t.Errorf("not identified: %+v, %+v", blank.Volumes, blank.Disks)
		}

		config := l.config(talosapi.Machine{Hostname: "other", Installer: "old"})
		patched, err := c.PatchConfig(config, cluster.ConfigPatch{Installer: installer, Disk: blank.Disks[0], Hostname: "wk1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.ApplyConfig(ctx, workerAddr, strings.ToUpper(workerUUID), patched); err != nil {
			t.Fatal(err)
		}
		node := await(t, func() (cluster.Machine, error) { return cluster.ReadMachine(ctx, c, workerAddr) },
			func(m cluster.Machine) bool { return m.Stage == "running" && m.Ready && m.BootEntry != "" })
		if node.FromISO {
			t.Error("an installed system runs from an ISO")
		}
		if node.BootID == "" || blank.BootID != "" { // in maintenance mode Talos reports it since 1.14
			t.Errorf("boot ID before %q, after %q", blank.BootID, node.BootID)
		}
		if node.Hostname != "wk1" || node.SystemDisk != "vda" || node.InstallImage != installer || node.ControlPlane {
			t.Errorf("node = %+v", node)
		}
		checkParts(t, c, node)
		i := len(node.Volumes) - 1
		data := blank.Volumes[0]
		data.ID, data.Phase, data.Mount = "EPHEMERAL", "ready", "/var"
		if diff := cmp.Diff(data, node.Volumes[i]); diff != "" {
			t.Errorf("data volume (-before +after):\n%s", diff)
		}
		stored, err := c.MachineConfig(ctx, workerAddr)
		if err != nil || !bytes.Equal(stored, patched) {
			t.Errorf("stored configuration has %d bytes, applied were %d; err = %v", len(stored), len(patched), err)
		}
		members := await(t, func() ([]cluster.Member, error) { return c.Members(ctx) }, func(m []cluster.Member) bool { return len(m) == 2 })
		wantMembers := []cluster.Member{
			{Nodename: "cp1", Addresses: []netip.Addr{cpAddr}, ControlPlane: true}, {Nodename: "wk1", Addresses: []netip.Addr{workerAddr}},
		}
		if diff := cmp.Diff(wantMembers, members, cmpopts.IgnoreFields(cluster.Member{}, "NodeID"), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	})
}

// checkParts: partial reads of a machine agree with the complete one.
func checkParts(t *testing.T, c *talos.Client, node cluster.Machine) {
	t.Helper()
	ctx := t.Context()
	if system, err := cluster.ReadCompared(ctx, c, workerAddr); err != nil || !cmp.Equal(node.Compared(), system, cmpopts.IgnoreFields(cluster.MachineDisk{}, "Blank"), cmpopts.IgnoreFields(cluster.VolumeStatus{}, "Disk", "Mount")) {
		t.Errorf("system (-machine +system): %v\n%s", err, cmp.Diff(node.Compared(), system))
	}
	if booted, err := cluster.ReadBooted(ctx, c, workerAddr); err != nil || !cmp.Equal(node.Booted(), booted) {
		t.Errorf("booted (-machine +booted): %v\n%s", err, cmp.Diff(node.Booted(), booted))
	}
	if booted, err := cluster.ReadArrived(ctx, c, workerAddr); err != nil || !cmp.Equal(node.Booted(), booted) {
		t.Errorf("arrived (-machine +arrived): %v\n%s", err, cmp.Diff(node.Booted(), booted))
	}
	if whole, err := cluster.ReadArrivedWhole(ctx, c, workerAddr); err != nil || !cmp.Equal(node, whole, cmpopts.IgnoreFields(cluster.Machine{}, "Addresses")) {
		t.Errorf("arrived (-machine +arrived): %v\n%s", err, cmp.Diff(node, whole))
	}
	if image, err := c.InstallImage(ctx, workerAddr); err != nil || image != node.InstallImage || image == "" {
		t.Errorf("install image %q of %+v: %v", image, node, err)
	}
	if who, err := cluster.ReadIdentity(ctx, c, workerAddr); err != nil || !cmp.Equal(who, cluster.MachineIdentity{UUID: node.UUID, Nodename: node.Nodename}) {
		t.Errorf("identity %+v: %v", who, err)
	}
	for _, addr := range []netip.Addr{cpAddr, workerAddr} {
		all, errAll := c.Kubernetes(ctx, addr)
		images, err := c.KubernetesImages(ctx, addr)
		if errAll != nil || err != nil || images.UUID != all.UUID || images.Images != all.Images || images.Images.Kubelet == "" {
			t.Errorf("images %+v of %+v: %v, %v", images, all, err, errAll)
		}
	}
}

// What a machine must not be sent, or not by us, is not sent.
func TestApplyConfigRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		l.running(c, cpAddr)
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		l.maintenance(c, workerAddr)
		secret := "hunter-two-is-a-secret"
		broken := append(l.config(talosapi.Machine{Hostname: "wk1", Installer: installer, InstallSerial: "recast-1"}), "---\nkind: "+secret+"\nx: "+secret+"\n"...)
		cases := map[string]struct {
			addr   netip.Addr
			uuid   string
			config cluster.Secret
			kind   fault.Kind
			want   string
		}{
			"another machine":  {workerAddr, cpUUID, broken, fault.Refused, "nothing was applied"},
			"no UUID to go by": {workerAddr, "", broken, fault.Refused, "nothing was applied"},
			"configured":       {cpAddr, cpUUID, broken, fault.Failed, "it asked for a certificate"},
			"Talos refuses it": {workerAddr, workerUUID, broken, fault.Refused, "rejects the configuration"},
		}
		for name, cs := range cases {
			err := c.ApplyConfig(ctx, cs.addr, cs.uuid, cs.config)
			if err == nil || !strings.Contains(err.Error(), cs.want) || fault.KindOf(err) != cs.kind || !strings.HasPrefix(err.Error(), cs.addr.String()) {
				t.Errorf("%s: err = %v (kind %d)", name, err, fault.KindOf(err))
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s: a secret is in %v", name, err)
			}
		}
		if m := l.maintenance(c, workerAddr); !m.Disks[0].Blank {
			t.Error("the disk is no longer blank")
		}
	})
}

// A lost answer is distinguished from a refusal.
func TestApplyConfigLosesItsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		ctx := t.Context()
		talosconfig, err := l.cluster.Talosconfig(role.Admin, cpAddr.String())
		if err != nil {
			t.Fatal(err)
		}
		dialer := l.net.Dialer()
		c := l.clientWith(talos.Options{Talosconfig: talosconfig, Dial: dialer.DialContext})
		l.running(c, cpAddr)
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		l.maintenance(c, workerAddr)
		l.rec.Hooks(nil, func(call record.Call) {
			if strings.HasSuffix(call.Method, "ApplyConfiguration") {
				dialer.Cut()
			}
		})
		err = c.ApplyConfig(ctx, workerAddr, workerUUID, l.config(talosapi.Machine{Hostname: "wk1", Installer: installer}))
		if !errors.Is(err, cluster.ErrLostAnswer) {
			t.Errorf("err = %v", err)
		}
	})
}

// TestReaderComparesTheRest: a talosconfig with the role os:reader reads what drift
// compares, except for the machine's configuration.
func TestReaderComparesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		admin := l.client(role.Admin)
		l.running(admin, cpAddr)
		whole, err := cluster.ReadCompared(t.Context(), admin, cpAddr)
		if err != nil || whole.ConfigHidden || whole.InstallImage == "" {
			t.Fatalf("as os:admin: %+v, %v", whole, err)
		}
		got, err := cluster.ReadCompared(t.Context(), l.client(role.Reader), cpAddr)
		if err != nil {
			t.Fatal(err)
		}
		whole.ConfigHidden, whole.InstallImage, whole.Configs, whole.Encryption, whole.NextBoot = true, "", cluster.Configs{}, nil, ""
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Errorf("as os:reader (-want +got):\n%s", diff)
		}
	})
}

func TestReadErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		admin, ctx := l.client(role.Admin), t.Context()
		l.running(admin, cpAddr)
		l.power("1F", workerUUID, drive("virtio0", "recast-1", 10, nil))
		l.maintenance(admin, workerAddr)
		other, err := talosapi.NewCluster("other", "https://127.42.8.10:6443", version, "v1.35.4")
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := other.Talosconfig(role.Admin, cpAddr.String(), "127.42.7.12:50001")
		if err != nil {
			t.Fatal(err)
		}
		stranger, reader := l.clientWith(talos.Options{Talosconfig: foreign}), l.client(role.Reader)
		machine := func(c *talos.Client, addr string) error {
			_, err := cluster.ReadMachine(ctx, c, netip.MustParseAddr(addr))
			return err
		}
		cases := map[string]struct {
			got  error
			want []string // in that order
			hint string
		}{
			"no machine":      {machine(admin, "127.42.7.99"), []string{"127.42.7.99", "no answer", "no route to host"}, ""},
			"not configured":  {machine(admin, workerAddr.String()), []string{workerAddr.String(), "certificate", "x509"}, "the machine was reset and has no configuration"},
			"other cluster":   {machine(stranger, cpAddr.String()), []string{cpAddr.String(), "x509"}, "another cluster"},
			"no admin":        {func() error { _, err := reader.MachineConfig(ctx, cpAddr); return err }(), []string{cpAddr.String(), "MachineConfigs", "may not"}, "os:admin"},
			"not blank":       {func() error { _, err := admin.MaintenanceMachine(ctx, cpAddr); return err }(), []string{cpAddr.String(), "it asked for a certificate"}, "configured already"},
			"every endpoint":  {func() error { _, err := stranger.Members(ctx); return err }(), []string{cpAddr.String(), "x509", "127.42.7.12:50001", "no route to host"}, "talosconfig"},
			"reader, machine": {machine(reader, cpAddr.String()), []string{cpAddr.String(), "boot_id", "may not"}, "os:admin"}, // a file, before 1.14
		}
		for name, c := range cases {
			if (c.got == nil) != (c.want == nil) {
				t.Errorf("%s: err = %v", name, c.got)
				continue
			}
			rest := ""
			if c.got != nil {
				rest = c.got.Error()
			}
			for _, want := range c.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Errorf("%s: %q lacks %q", name, c.got, want)
				}
				rest = after
			}
			if hints := strings.Join(fault.Hints(c.got), "; "); !strings.Contains(hints, c.hint) || strings.Contains(rest, "rpc error") {
				t.Errorf("%s: err = %v, hints = %s", name, c.got, hints)
			}
		}
	})
}

// A machine that accepts the connection and stays silent costs only the timeout; a cancelled call ends at once.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		silent, err := l.net.Listen("127.42.7.66:50000")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		c := l.client(role.Admin)
		start := time.Now()
		_, err = cluster.ReadMachine(t.Context(), c, netip.MustParseAddr("127.42.7.66"))
		if took := time.Since(start); err == nil || took != 15*time.Second || !strings.Contains(err.Error(), "gave up after 15s") {
			t.Errorf("err = %v after %s", err, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		start = time.Now()
		_, err = cluster.ReadMachine(ctx, c, netip.MustParseAddr("127.42.7.66"))
		if took := time.Since(start); !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("err = %v after %s", err, took)
		}
	})
}

// TestClocks: a certificate is not valid at the time of one side.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off        time.Duration // of the machine's clock
		text, hint string
	}{
		"the machine is ahead":  {5 * time.Hour, "its certificate is not valid at this time, so its clock or ours is wrong: ", "compare the machine's clock"},
		"the machine is behind": {-5 * time.Hour, "our certificate is expired or not yet valid by its clock: ", "the machine's clock is wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t)
				l.fw.Trouble(9000, talosapi.Trouble{Clock: c.off})
				client := l.client(role.Admin)
				time.Sleep(time.Minute)
				_, err := cluster.ReadMachine(t.Context(), client, cpAddr)
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("err = %v", err)
				}
				if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
					t.Errorf("hints: %s", hints)
				}
			})
		})
	}
}
