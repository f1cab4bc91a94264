package talosapi_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

func TestRoles(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.node(image("old"))
		ctx := t.Context()
		calls := map[string]func(*client.Client) error{
			"status": func(c *client.Client) error {
				_, err := get[*runtime.MachineStatus](ctx, c, runtime.NewMachineStatus().Metadata())
				return err
			},
			"version": func(c *client.Client) error { _, err := c.Version(ctx); return err },
			"config": func(c *client.Client) error {
				_, err := get[*config.MachineConfig](ctx, c, config.NewMachineConfig(nil).Metadata())
				return err
			},
			"watch config": func(c *client.Client) error {
				ch := make(chan state.Event)
				return c.COSI.Watch(ctx, config.NewMachineConfig(nil).Metadata(), ch)
			},
			"file": func(c *client.Client) error { _, err := readFile(ctx, c, "/usr/local/sbin/iscsid"); return err },
			"unknown kind": func(c *client.Client) error {
				_, err := safe.StateListAll[*k8s.KubeletStatus](ctx, c.COSI)
				return err
			},
			"write": func(c *client.Client) error {
				err := c.COSI.Create(ctx, k8s.NewNodename(k8s.NamespaceName, "other"))
				if state.IsOwnerConflictError(err) { // COSI's client turns PermissionDenied into it
					return status.Error(codes.PermissionDenied, err.Error())
				}
				return err
			},
			"rollback": func(c *client.Client) error { return c.Rollback(ctx) },
			"lifecycle upgrade": func(c *client.Client) error {
				_, err := install(ctx, c, oldRef)
				return err
			},
			"upgrade": func(c *client.Client) error { _, err := legacy(ctx, c, "/"); return err },
			"pull":    func(c *client.Client) error { return pull(ctx, c, "registry.example/none:v1") },
			"client configuration": func(c *client.Client) error {
				_, err := c.GenerateClientConfiguration(ctx, &machineapi.GenerateClientConfigurationRequest{}) // without a life
				return err
			},
			"apply rubbish": func(c *client.Client) error {
				_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte("machine: [")})
				return err
			},
		}
		got := map[string]string{}
		for _, r := range []role.Role{role.Admin, role.Reader} {
			c := l.client(cpAddr, r)
			for name, call := range calls {
				got[name] += fmt.Sprintf("%s ", status.Code(call(c)))
			}
		}
		want := map[string]string{
			"status": "OK OK ", "version": "OK OK ", "config": "OK PermissionDenied ", "watch config": "OK PermissionDenied ",
			"file": "OK PermissionDenied ", "unknown kind": "PermissionDenied PermissionDenied ", "write": "PermissionDenied PermissionDenied ",
			"rollback": "Unknown PermissionDenied ", "lifecycle upgrade": "Internal PermissionDenied ",
			"upgrade": "Unknown PermissionDenied ", "pull": "NotFound PermissionDenied ",
			"client configuration": "InvalidArgument PermissionDenied ", "apply rubbish": "InvalidArgument PermissionDenied ",
		}
		must.Equal(t, "admin, then reader", want, got)
	})
}

func TestWorkerNeedsAControlPlane(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.worker()
		must.Equal(t, "a lone worker has an API", false, !l.silent(workerAddr, 5*time.Minute))
		l.controlPlane(image("old"))
		l.running(workerAddr)
	})
}

func TestDiscoveryForgetsAMachineAfterItsTimeToLive(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		b := l.worker()
		l.running(workerAddr)
		b.guest.Kill()
		l.worker()
		l.running(workerAddr)
		count := func() (affiliates, members int) {
			t.Helper()
			time.Sleep(time.Second)
			a := must.Get(safe.StateListAll[*cluster.Affiliate](t.Context(), c.COSI))(t)
			m := must.Get(safe.StateListAll[*cluster.Member](t.Context(), c.COSI))(t)
			return a.Len(), m.Len()
		}
		if a, m := count(); a != 3 || m != 2 {
			t.Errorf("after the recreate: %d affiliates, %d members", a, m)
		}
		time.Sleep(30 * time.Minute)
		if a, m := count(); a != 2 || m != 2 {
			t.Errorf("later: %d affiliates, %d members", a, m)
		}
	})
}

func TestRecorderSeesAndBreaksCalls(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		from := len(l.rec.Calls())
		facts(t, c)
		must.Equal(t, "reads count as mutations", 0, l.rec.Mutations())
		ended := 0
		l.rec.Hooks(func(c record.Call) error {
			if c.Mutation {
				return errors.New("the cable is out")
			}
			return nil
		}, func(record.Call) { ended++ })
		must.Equal(t, "reboot", codes.Unavailable, status.Code(c.Reboot(t.Context())))
		calls := l.rec.Calls()[from:]
		last := calls[len(calls)-1]
		want := record.Call{Seq: last.Seq, Proto: "talos", Target: cpAddr, Method: "/machine.MachineService/Reboot", User: "os:admin", Mutation: true}
		if diff := cmp.Diff(want, last); diff != "" || ended != 0 {
			t.Errorf("%d calls ended; the last (-want +got):\n%s", ended, diff)
		}
		time.Sleep(time.Minute)
		l.running(cpAddr)
		must.Equal(t, "the machine rebooted", 1, len(l.lines(&l.kubelets)))
	})
}

func TestDisksAsTheKernelShowsThem(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		named := func(d world.Drive) world.Drive {
			d.WWN = "3ABCDEF012345678"
			return d
		}
		for name, tc := range map[string]struct {
			hw     world.Hardware
			drives []world.Drive
			want   map[resource.ID]string
		}{
			"virtio-scsi-single": {world.Hardware{SCSI: "virtio-scsi-single"}, []world.Drive{
				disk("scsi0", "", 10, nil), disk("scsi1", "data-wk1", 20, []byte("ext4, perhaps")), named(disk("scsi4", "more", 1, nil)), disk("virtio3", "sys", 1, nil), named(disk("virtio4", "", 1, nil)),
			}, map[resource.ID]string{
				"sda": `virtio "" "" /pci0000:00/0000:00:05.0/0000:01:01.0/virtio2/host2/target2:0:0/2:0:0:0`,
				"sdb": `virtio "" "" /pci0000:00/0000:00:05.0/0000:01:02.0/virtio3/host3/target3:0:0/3:0:0:1`,
				"sdc": `virtio "" "naa.3abcdef012345678" /pci0000:00/0000:00:05.0/0000:01:05.0/virtio6/host6/target6:0:0/6:0:0:4`,
				"vda": `virtio "sys" "" /pci0000:00/0000:00:0d.0/virtio5`,
				"vdb": `virtio "" "" /pci0000:00/0000:00:0e.0/virtio6`,
			}},
			"virtio-scsi-pci": {world.Hardware{SCSI: "virtio-scsi-pci"}, []world.Drive{disk("scsi0", "", 10, nil), disk("scsi3", "data", 10, nil)}, map[resource.ID]string{
				"sda": `virtio "" "" /pci0000:00/0000:00:05.0/virtio3/host2/target2:0:0/2:0:0:0`,
				"sdb": `virtio "" "" /pci0000:00/0000:00:05.0/virtio3/host2/target2:0:0/2:0:0:3`,
			}},
			"LSI": {world.Hardware{}, []world.Drive{disk("scsi0", "sys", 10, nil), named(disk("scsi9", "", 10, nil))}, map[resource.ID]string{
				"sda": `spi "" "" /pci0000:00/0000:00:05.0/host2/target2:0:0/2:0:0:0`,
				"sdb": `spi "" "naa.3abcdef012345678" /pci0000:00/0000:00:06.0/host3/target3:0:2/3:0:2:0`,
			}},
			"ATA on q35": {world.Hardware{Q35: true}, []world.Drive{disk("ide0", "", 10, nil), disk("sata1", "data", 10, nil), named(disk("sata2", "x", 1, nil))}, map[resource.ID]string{
				"sda": `sata "" "t10.ATA     QEMU HARDDISK                           QM00001" /pci0000:00/0000:00:01.1/ata1/host0/target0:0:0/0:0:0:0`,
				"sdb": `sata "" "t10.ATA     QEMU HARDDISK                           data" /pci0000:00/0000:00:01.1/ata2/host1/target1:0:0/1:0:0:0`,
				"sdc": `sata "" "naa.3abcdef012345678" /pci0000:00/0000:00:01.1/ata3/host2/target2:0:0/2:0:0:0`,
			}},
			"without a serial on q35": {world.Hardware{Q35: true, SCSI: "virtio-scsi-single"}, []world.Drive{
				disk("ide3", "", 1, nil), disk("sata0", "", 10, nil), disk("sata1", "", 10, nil), disk("scsi1", "", 1, nil), disk("virtio1", "", 1, nil), disk("virtio6", "", 1, nil),
			}, map[resource.ID]string{
				"sda": `sata "" "t10.ATA     QEMU HARDDISK                           QM00007" /pci0000:00/0000:00:01.1/ata4/host3/target3:0:0/3:0:0:0`,
				"sdb": `sata "" "t10.ATA     QEMU HARDDISK                           QM00013" /pci0000:00/0000:00:01.1/ata1/host0/target0:0:0/0:0:0:0`,
				"sdc": `sata "" "t10.ATA     QEMU HARDDISK                           QM00015" /pci0000:00/0000:00:01.1/ata2/host1/target1:0:0/1:0:0:0`,
				"sdd": `virtio "" "" /pci0000:00/0000:00:1e.0/0000:05:04.0/0000:09:02.0/virtio3/host3/target3:0:0/3:0:0:1`,
				"vda": `virtio "" "" /pci0000:00/0000:00:1e.0/0000:05:01.0/0000:06:0b.0/virtio3`,
				"vdb": `virtio "" "" /pci0000:00/0000:00:1e.0/0000:05:03.0/0000:08:01.0/virtio8`,
			}},
			"SATA on i440fx": {world.Hardware{}, []world.Drive{disk("sata1", "", 10, nil)}, map[resource.ID]string{
				"sda": `sata "" "t10.ATA     QEMU HARDDISK                           QM00007" /pci0000:00/0000:00:01.1/ata2/host1/target1:0:0/1:0:0:0`,
			}},
			"IDE on i440fx": {world.Hardware{}, []world.Drive{disk("ide0", "data", 10, nil), disk("ide1", "", 10, nil)}, map[resource.ID]string{
				"sda": `ata "QEMU_HARDDISK_data" "t10.ATA     QEMU HARDDISK                           data" /pci0000:00/0000:00:01.1/ata1/host0/target0:0:0/0:0:0:0`,
				"sdb": `ata "QEMU_HARDDISK_QM00002" "t10.ATA     QEMU HARDDISK                           QM00002" /pci0000:00/0000:00:01.1/ata2/host1/target1:0:0/1:0:0:0`,
			}},
		} {
			b := l.box(workerAddr, append(tc.drives, disk("efidisk0", "", 0, nil), cdrom(l.iso(image("new"))))...)
			b.hw.SCSI, b.hw.Q35 = tc.hw.SCSI, tc.hw.Q35
			b.on()
			all := must.Get(safe.StateListAll[*block.Disk](t.Context(), l.maintained(workerAddr).COSI))(t)
			got := map[resource.ID]string{}
			for d := range all.All() {
				if s := d.TypedSpec(); !s.CDROM && !s.Readonly {
					got[d.Metadata().ID()] = fmt.Sprintf("%s %q %q %s", s.Transport, s.Serial, s.WWID, s.BusPath)
				}
			}
			must.Equal(t, name+": disks", tc.want, got)
			b.guest.Kill()
		}
	})
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	conf := l.config(cp1(oldRef))
	of := func(build string) string {
		system := must.Get(l.fw.Preinstalled(conf, ukiOf(t, image(build)), true))(t)
		return talosapi.Describe(system)
	}
	first, again, other := of("old"), of("old"), of("new")
	if first != again || first == other {
		t.Errorf("descriptions:\n%s\n%s\n%s", first, again, other)
	}
	data, more := talosapi.DataDisk("u-data", []byte("a")), talosapi.DataDisk("u-data", []byte("a"))
	if talosapi.Describe(data) == talosapi.Describe(more) {
		t.Error("two data disks with UUIDs of their own read alike")
	}
}
