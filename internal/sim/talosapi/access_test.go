package talosapi_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
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
		count := func() [2]int {
			t.Helper()
			time.Sleep(time.Second)
			a := must.Get(safe.StateListAll[*cluster.Affiliate](t.Context(), c.COSI))(t)
			m := must.Get(safe.StateListAll[*cluster.Member](t.Context(), c.COSI))(t)
			return [2]int{a.Len(), m.Len()}
		}
		must.Equal(t, "affiliates, members after the recreate", [2]int{3, 2}, count())
		time.Sleep(30 * time.Minute)
		must.Equal(t, "affiliates, members later", [2]int{2, 2}, count())
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
		must.Equal(t, "the last call, and those that ended", []any{want, 0}, []any{last, ended})
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
		return talosapi.Describe(must.Get(l.fw.Preinstalled(conf, ukiOf(t, image(build)), true))(t))
	}
	first, again, other := of("old"), of("old"), of("new")
	must.Equal(t, "descriptions: old is old, and new", []any{first, false}, []any{again, first == other})
	data, more := talosapi.DataDisk("u-data", []byte("a")), talosapi.DataDisk("u-data", []byte("a"))
	must.Equal(t, "two data disks with UUIDs of their own read alike", false, talosapi.Describe(data) == talosapi.Describe(more))
}

// eventsOf are a machine's events of sequences, phases and services, from the beginning of its
// boot until it goes down, or until a given one.
func eventsOf(t *testing.T, c *client.Client, until string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	s := must.Get(c.MachineClient.Events(ctx, &machineapi.EventsRequest{TailEvents: -1}))(t)
	var all []string
	for until == "" || !slices.Contains(all, until) {
		e, err := s.Recv()
		if err != nil {
			break
		}
		if len(e.GetData().GetTypeUrl()) == 0 {
			continue
		}
		event := must.Get(client.UnmarshalEvent(e))(t)
		switch msg := event.Payload.(type) {
		case *machineapi.SequenceEvent:
			line := fmt.Sprintf("sequence %s %s", msg.GetSequence(), msg.GetAction())
			if msg.GetError() != nil {
				line += fmt.Sprintf(" %s %s", msg.GetError().GetCode(), msg.GetError().GetMessage())
			}
			all = append(all, line)
		case *machineapi.PhaseEvent:
			all = append(all, fmt.Sprintf("phase %s %s", msg.GetPhase(), msg.GetAction()))
		case *machineapi.TaskEvent:
			if msg.GetTask() == "runningMaintenance" {
				all = append(all, fmt.Sprintf("task %s %s", msg.GetTask(), msg.GetAction()))
			}
		case *machineapi.ServiceStateEvent:
			if msg.GetService() == "etcd" {
				all = append(all, fmt.Sprintf("etcd %s healthy=%v", msg.GetAction(), msg.GetHealth().GetHealthy()))
			}
		}
	}
	return all
}

// through are all events of a sequence's phases.
func through(phases ...string) []string {
	var all []string
	for _, p := range phases {
		all = append(all, "phase "+p+" START", "phase "+p+" STOP")
	}
	return all
}

func TestEventsOfABoot(t *testing.T) {
	type phases struct{ initialize, boot []string }
	each(t, map[string]phases{
		"v1.13.9": {
			through("systemRequirements", "earlyServices", "usb", "meta", "dashboard", "config"),
			through("memorySizeCheck", "diskSizeCheck", "env", "dbus", "ephemeral", "udevSetup", "userDisks", "userSetup"),
		},
		"v1.14.1": {
			through("systemRequirements", "earlyServices", "meta", "dashboard", "config"),
			through("memorySizeCheck", "diskSizeCheck", "env", "dbus", "ephemeral", "promotableVolumes", "userDisks", "userSetup"),
		},
	}, func(t *testing.T, talos string, p phases) {
		_, c := newLab(t).node(version("old", talos))
		want := slices.Concat([]string{"sequence initialize START"}, p.initialize,
			[]string{"sequence initialize STOP", "etcd WAITING healthy=false", "sequence install START", "sequence install STOP", "sequence boot START"}, p.boot,
			[]string{
				"phase startEverything START", "etcd PREPARING healthy=false", "etcd RUNNING healthy=false", "etcd RUNNING healthy=true",
				"phase startEverything STOP", "sequence boot STOP",
			})
		must.Equal(t, "events", want, eventsOf(t, c, "sequence boot STOP"))
		kernel := dmesg(t, c)
		for _, line := range []string{
			"boot sequence: 9 phase(s)", "phase ephemeral (5/9): 1 tasks(s)", "task mountEphemeralPartition (1/1): done, ",
			"phase startEverything (9/9): done, ", "boot sequence: done: ", "service[etcd](Running): Health check successful", "machine is running and ready",
		} {
			must.Contain(t, "dmesg", kernel, ": [talos] "+line)
		}
	})
}

// The reboot of an installation within machined's boot sequence ends that sequence.
func TestEventsOfAnInstallation(t *testing.T) {
	type sequences struct {
		config string   // version of the configuration: since 1.14 it is unattended
		want   []string // after the end of initialize, without phases
	}
	each(t, map[string]sequences{
		"by a sequence": {"v1.13.9", []string{"sequence install START"}},
		"unattended": {"v1.14.1", []string{
			"sequence install START", "sequence install STOP", "sequence boot START", "sequence boot STOP",
			"sequence boot NOOP CANCELED sequence failed: error running phase 5 in boot sequence: task 1/1: failed, context canceled", "sequence reboot START",
		}},
	}, func(t *testing.T, name string, tc sequences) {
		l := newLabOf(t, tc.config)
		_, open := l.blank(cpAddr, version("new", "v1.14.1"))
		must.Equal(t, "events in maintenance mode", []string{"phase config START", "task runningMaintenance START"}, eventsOf(t, open, "task runningMaintenance START")[9:])
		apply(t, open, l.config(cp1(newRef)))
		time.Sleep(10 * time.Second)
		c := l.client(cpAddr, role.Admin)
		got := slices.DeleteFunc(eventsOf(t, c, ""), func(line string) bool { return !strings.HasPrefix(line, "sequence ") })
		must.Equal(t, "events", append([]string{"sequence initialize START", "sequence initialize STOP"}, tc.want...), got)
		if name == "by a sequence" {
			return
		}
		time.Sleep(time.Minute)
		l.alone(cpAddr)
		l.running(cpAddr)
		want(t, "installation after the reboot", unattended(t, c), "installed")
	})
}

// unattended is the phase of an unattended installation.
func unattended(t *testing.T, c *client.Client) string {
	t.Helper()
	u := must.Get(get[*runtime.UnattendedInstallStatus](t.Context(), c, runtime.NewUnattendedInstallStatus().Metadata()))(t)
	return u.TypedSpec().Phase.String()
}

func TestEventsOfAReset(t *testing.T) {
	inQuorum(t, 1, func(t *testing.T, q *quorum) {
		c := q.admin(1)
		must.Do(t, c.ResetGeneric(t.Context(), &machineapi.ResetRequest{SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{{Label: "STATE", Wipe: true}}, Reboot: true}))
		all := eventsOf(t, c, "phase resetSpec START")
		want := slices.Concat([]string{"sequence reset START"}, through("cleanup", "dbus", "preReset", "stopServices", "umount", "unmountBind", "unmountSystem",
			"volumeFinalize", "kexec", "stopEverything", "forceCleanup"), []string{"phase resetSpec START"})
		must.Equal(t, "events", want, all[slices.Index(all, want[0]):])
	})
}

// eventIDs are the IDs of the first two requested events.
func eventIDs(t *testing.T, c *client.Client, req *machineapi.EventsRequest) (ids []string) {
	t.Helper()
	s := must.Get(c.MachineClient.Events(t.Context(), req))(t)
	for range 3 { // an empty one comes first
		e := must.Get(s.Recv())(t)
		ids = append(ids, e.GetId())
	}
	return ids[1:]
}

// A client asks for the events after the last one that it has seen, maybe before a reboot.
func TestEventsAfterAnID(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		first := eventIDs(t, c, &machineapi.EventsRequest{TailEvents: -1})
		want(t, "the second", eventIDs(t, c, &machineapi.EventsRequest{TailId: first[0]})[0], first[1])
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		all := eventIDs(t, c, &machineapi.EventsRequest{TailEvents: -1})
		want(t, "after a reboot", strings.Join(eventIDs(t, c, &machineapi.EventsRequest{TailId: first[1]}), " "), strings.Join(all, " "))
	})
}

// dmesg is the kernel's log.
func dmesg(t *testing.T, c *client.Client) string {
	t.Helper()
	s := must.Get(c.Dmesg(t.Context(), false, false))(t)
	var all bytes.Buffer
	for line, err := s.Recv(); err == nil; line, err = s.Recv() {
		all.Write(line.GetBytes())
	}
	return all.String()
}

const system, inContainerd = constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD

// lines are the lines of a log, without following it.
func lines(t *testing.T, c *client.Client, namespace string, driver common.ContainerDriver, id string, tail int32) ([]string, error) {
	t.Helper()
	s := must.Get(c.Logs(t.Context(), namespace, driver, id, false, tail))(t)
	var all []string
	for {
		piece, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, strings.TrimSuffix(string(piece.GetBytes()), "\n"))
	}
}

func TestLogs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		c := l.extended()
		all := must.Get(lines(t, c, system, inContainerd, "machined", -1))(t)
		must.Contain(t, "machined's first line", all[0]+"\n", " initialize sequence: 8 phase(s)\n")
		last := must.Get(lines(t, c, system, inContainerd, "machined", 2))(t)
		must.Equal(t, "the last two lines", all[len(all)-2:], last)
		pod := "kube-system/kube-apiserver-cp1"
		_, err := lines(t, c, constants.K8sContainerdNamespace, common.ContainerDriver_CRI, pod+":nonsense", -1)
		requireError(t, "no container", err, codes.Unknown, "not found")
		requireError(t, "no namespace", must.Err(lines(t, c, "", common.ContainerDriver_CRI, pod, -1)), codes.InvalidArgument, "namespace can't be empty")
		registered := must.Get(c.LogsContainers(t.Context()))(t).GetMessages()[0].GetIds()
		must.Equal(t, "the extension has a log", true, slices.Contains(registered, "ext-guest"))
		follow := must.Get(c.Logs(t.Context(), system, inContainerd, "machined", true, 0))(t)
		synctest.Wait()
		must.Get(c.ServiceRestart(t.Context(), "kubelet"))(t)
		for _, want := range []string{
			"(Stopping): Sending SIGTERM to task", "(Finished): Service finished successfully", "(Preparing): Running pre state",
			"(Running): Started task kubelet", "(Running): Health check successful",
		} {
			piece := must.Get(follow.Recv())(t)
			must.Contain(t, "what follows", string(piece.GetBytes()), " service[kubelet]"+want)
		}
	})
}

// extended is a running control plane with one extension's service; the client is its administrator's.
func (l *lab) extended() *client.Client {
	l.t.Helper()
	img := version("old", "v1.14.1")
	img.Extensions = append(img.Extensions, artefact.Extension{
		Name: "guest", Version: "v1", Files: map[string][]byte{constants.ExtensionServiceConfigPath + "/qemu.yaml": []byte("name: guest\ncontainer: {entrypoint: ./guest}\n")},
	})
	_, c := l.node(img)
	return c
}

const (
	wholeDisk = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: whole\nvolumeType: disk\nprovisioning: {diskSelector: {match: disk.serial == 'data-a'}}\n"
	directory = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: dir\nvolumeType: directory\n"
	shared    = "apiVersion: v1alpha1\nkind: ExternalVolumeConfig\nname: share\nfilesystemType: virtiofs\nmount: {virtiofs: {tag: share0}}\n"
	onDataB   = "apiVersion: v1alpha1\nkind: %s\nname: %s\nprovisioning: {diskSelector: {match: disk.serial == 'data-b'}, minSize: 1GiB, maxSize: 1GiB}\n"
	withNode  = "encryption: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n"
)

// TestVolumesOfEveryKind: each has its status, what pods write lands where it is mounted, and on EPHEMERAL below the same
// path once its document is gone. A recreated machine finds them again, but opens none with another encryption.
func TestVolumesOfEveryKind(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		a, b := disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil)
		documents := []string{
			wholeDisk, directory, shared, fmt.Sprintf(onDataB, "VolumeConfig", "CRI"), fmt.Sprintf(onDataB, "VolumeConfig", "LOG"),
			fmt.Sprintf(onDataB, "RawVolumeConfig", "raw") + withNode, fmt.Sprintf(onDataB, "UserVolumeConfig", "locked") + withNode,
		}
		create := func(documents ...string) (*box, *client.Client) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"), a, b)
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: documents}))
			l.running(workerAddr)
			return box, l.client(workerAddr, role.Admin)
		}
		box, c := create(documents...)
		want(t, "volumes", everyVolume(t, c), "CRI partition ready /dev/vdc1, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition ready /dev/vdc3, u-whole disk ready /dev/vdb, x-share external ready share0")
		writes := func(path, volume string) {
			t.Helper()
			want(t, path, must.Get(l.fw.PodWrites(box.hw.VMID, path, []byte("x")))(t), volume)
		}
		writes("/var/mnt/whole/db", "u-whole")
		writes("/var/log/pods/a", "LOG")
		writes("/var/mnt/dir/db", "EPHEMERAL")
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: slices.Delete(slices.Clone(documents), 0, 1)}))
		writes("/var/mnt/whole/db", "EPHEMERAL")
		must.Equal(t, "a volume without a document has a status", false, strings.Contains(everyVolume(t, c), "u-whole"))
		kept := talosapi.Lasting(a.Media.Bytes())
		box.guest.Kill()

		documents[5], documents[6] = fmt.Sprintf(onDataB, "RawVolumeConfig", "raw"), fmt.Sprintf(onDataB, "UserVolumeConfig", "locked")
		documents[3] = strings.TrimSpace(documents[3]) + "\n" + withNode
		box, c = create(documents...)
		want(t, "volumes of the recreated machine", everyVolume(t, c), "CRI partition failed /dev/vdc1: block dev type mismatch: xfs != luks, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition failed /dev/vdc3: filesystem type mismatch: luks != xfs, u-whole disk ready /dev/vdb, x-share external ready share0")
		must.Equal(t, "the whole disk changed", kept, talosapi.Lasting(a.Media.Bytes()))
		writes("/var/mnt/locked/db", "EPHEMERAL")
		box.guest.Kill()
	})
}

// everyVolume are the volumes of the configuration, but for EPHEMERAL and those that every system disk has.
func everyVolume(t *testing.T, c *client.Client) string {
	t.Helper()
	all := must.Get(safe.StateListAll[*block.VolumeStatus](t.Context(), c.COSI))(t)
	var lines []string
	for v := range all.All() {
		if spec := v.TypedSpec(); !slices.Contains([]string{"META", "STATE", "EPHEMERAL"}, v.Metadata().ID()) {
			line := fmt.Sprintf("%s %s %s %s", v.Metadata().ID(), spec.Type, spec.Phase, spec.Location)
			if spec.ErrorMessage != "" {
				line += ": " + spec.ErrorMessage
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// TestVolumesThatCannotBe: Talos' own errors, for what a selector matches on an installed machine.
func TestVolumesThatCannotBe(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		const partition, whole = "minSize: 1GiB}\n", "}\nvolumeType: disk\n"
		selecting := func(name, match, rest string) string {
			return fmt.Sprintf("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: %s\nprovisioning: {diskSelector: {match: %q}, %s", name, match, rest)
		}
		_, c := l.blank(workerAddr, version("old", "v1.14.1"), disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil))
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: []string{
			selecting("none", "disk.transport == 'nvme'", partition), selecting("large", "disk.serial == 'data-a'", "minSize: 900GiB}\n"),
			selecting("two", "disk.serial.startsWith('data-')", whole), selecting("attribute", "!system_disk && disk.size > 1u", whole),
			selecting("system", "disk.size < 15u * GiB && disk.transport == 'virtio' && !disk.cdrom", whole), selecting("fits", "disk.serial == 'data-b'", partition),
		}}))
		l.running(workerAddr)
		must.Contain(t, "volumes", everyVolume(t, l.client(workerAddr, role.Admin)),
			"u-none partition failed : no disks matched selector for volume", "u-fits partition ready /dev/vdc1",
			"u-large partition failed : no disks matched for volume (1 matched selector): 1 have not enough space, 0 have wrong format, 0 have other issues",
			"u-two disk failed : multiple disks matched locator for disk volume; matched disks: [/dev/vdb /dev/vdc]",
			"u-attribute disk failed : error evaluating disk locator: no such attribute(s): system_disk",
			"u-system disk failed : filesystem type mismatch: gpt != xfs",
		)
	})
}

// listed is a line for each listed file: relative name, kind, size.
func listed(ctx context.Context, c *client.Client, req *machineapi.ListRequest) (lines []string, err error) {
	stream, err := c.LS(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		line := f.GetRelativeName()
		switch mode := fs.FileMode(f.GetMode()); {
		case mode.IsDir():
			line += "/"
		case f.GetLink() != "":
			line += " -> " + f.GetLink()
		default:
			line += fmt.Sprintf(" %d", f.GetSize())
		}
		lines = append(lines, line)
	}
}

// TestFiles lists, reads and copies the files of one machine.
func TestFiles(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.node(image("old"))
		l.lists(t)
		l.reads(t)
		l.copies(t)
	})
}

func (l *lab) lists(t *testing.T) {
	t.Helper()
	c := l.client(cpAddr, role.Reader) // a reader may list, but not read
	below := []string{
		"./", "lib/", "lib/kubelet/", "lib/kubelet/credentialproviders/", "sbin/", "sbin/iscsid 13",
		"share/", "share/ca-certificates -> /etc/ssl", "share/schematic/", "share/schematic/schematic-old 0",
	}
	for name, test := range map[string]struct {
		req  *machineapi.ListRequest
		want []string
		err  string
	}{
		"one level":          {req: &machineapi.ListRequest{Root: "/usr/local/"}, want: []string{"./", "lib/", "sbin/", "share/"}},
		"no leading slash":   {req: &machineapi.ListRequest{Root: "usr/local/sbin"}, want: []string{"./", "iscsid 13"}},
		"all":                {req: &machineapi.ListRequest{Root: "/usr/local", Recurse: true}, want: below},
		"two levels":         {req: &machineapi.ListRequest{Root: "/usr/local/lib", Recurse: true, RecursionDepth: 1}, want: []string{"./", "kubelet/"}},
		"a file":             {req: &machineapi.ListRequest{Root: "/usr/local/sbin/iscsid"}, want: []string{"iscsid 13"}},
		"through a link":     {req: &machineapi.ListRequest{Root: "/usr/local/share/ca-certificates"}, want: []string{"./", "certs/"}},
		"made by the kernel": {req: &machineapi.ListRequest{Root: "/proc/cmdline"}, want: []string{"cmdline 0"}},
		"only files":         {req: &machineapi.ListRequest{Root: "/usr/local", Types: []machineapi.ListRequest_Type{machineapi.ListRequest_REGULAR}}, want: []string{"sbin/iscsid 13", "share/schematic/schematic-old 0"}},
		"files and links": {
			req:  &machineapi.ListRequest{Root: "/usr/local/share", Recurse: true, Types: []machineapi.ListRequest_Type{machineapi.ListRequest_REGULAR, machineapi.ListRequest_SYMLINK}},
			want: []string{"ca-certificates -> /etc/ssl", "schematic/schematic-old 0"},
		},
		"nothing there": {req: &machineapi.ListRequest{Root: "/usr/none"}, err: "Unknown lstat /usr/none: no such file or directory"},
	} {
		got, err := listed(t.Context(), c, test.req)
		must.Equal(t, name, []any{test.want, cmp.Or(test.err, "OK")}, []any{got, said(err)})
	}
}

// said is a status as a line: "OK", or code and message.
func said(err error) string {
	if err == nil {
		return "OK"
	}
	return status.Code(err).String() + " " + client.Status(err).Message()
}

func (l *lab) reads(t *testing.T) {
	t.Helper()
	for name, test := range map[string]struct {
		as         role.Role
		path, want string
		err        string
	}{
		"a file of an extension": {as: role.Admin, path: "/usr/local/sbin/iscsid", want: "iscsid of old"},
		"the list of extensions": {as: role.Admin, path: "/etc/extensions.yaml", want: "layers:\n    - image: 0.sqsh\n"},
		"the schematic's":        {as: role.Admin, path: "/usr/local/share/schematic/schematic-old"},
		"nothing there":          {as: role.Admin, path: "/usr/none", err: "NotFound stat /usr/none: no such file or directory"},
		"below a file":           {as: role.Admin, path: "/usr/local/sbin/iscsid/x", err: "NotFound stat /usr/local/sbin/iscsid/x: no such file or directory"},
		"a directory":            {as: role.Admin, path: "/usr/local", err: "Unknown path must be a regular file"},
		"a link to a directory":  {as: role.Admin, path: "/usr/local/share/ca-certificates", err: "Unknown path must be a regular file"},
		"as an operator":         {as: role.Operator, path: "/usr/local/sbin/iscsid", err: "PermissionDenied not authorized"},
		"as a reader":            {as: role.Reader, path: "/usr/local/sbin/iscsid", err: "PermissionDenied not authorized"},
	} {
		got, err := readFile(t.Context(), l.client(cpAddr, test.as), test.path)
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" || said(err) != cmp.Or(test.err, "OK") {
			t.Errorf("%s: %q, err = %v", name, got, err)
		}
	}
}

func (l *lab) copies(t *testing.T) {
	t.Helper()
	for name, test := range map[string]struct {
		as   role.Role
		path string
		want []string
		err  string
	}{
		"a directory": {as: role.Admin, path: "/usr/local/", want: []string{
			"lib/", "lib/kubelet/", "lib/kubelet/credentialproviders/", "sbin/", "sbin/iscsid iscsid of old",
			"share/", "share/ca-certificates -> /etc/ssl", "share/schematic/", "share/schematic/schematic-old ",
		}},
		"a file":        {as: role.Admin, path: "/usr/local/sbin/iscsid", want: []string{"iscsid iscsid of old"}},
		"nothing there": {as: role.Admin, path: "/usr/none", err: "Unknown lstat /usr/none: no such file or directory"},
		"not absolute":  {as: role.Admin, path: "usr/", err: "Unknown path is not absolute usr"},
		"as a reader":   {as: role.Reader, path: "/usr/local", err: "PermissionDenied not authorized"},
	} {
		got, err := copied(t.Context(), l.client(cpAddr, test.as), test.path)
		must.Equal(t, name, []any{test.want, cmp.Or(test.err, "OK")}, []any{got, said(err)})
	}
}

func copied(ctx context.Context, c *client.Client, path string) (lines []string, err error) {
	r, err := c.Copy(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(z)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return lines, err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			lines = append(lines, h.Name)
		case tar.TypeSymlink:
			lines = append(lines, h.Name+" -> "+h.Linkname)
		default:
			lines = append(lines, h.Name+" "+string(content))
		}
	}
}

// TestFilesOfExtensions: the squashfs of a later extension overrides earlier ones, and links
// are links on the node too, with the same targets. imager takes firmware out of an
// extension; the node has it all the same, except microcode, which is no longer a file.
func TestFilesOfExtensions(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		img := image("old")
		img.Extensions = append(img.Extensions, artefact.Extension{
			Name: "over", Version: "v1", Files: map[string][]byte{"/usr/local/sbin/iscsid": []byte("of over")},
		}, artefact.Extension{
			Name: "tool", Version: "v1", Files: map[string][]byte{"/usr/local/lib/tool/lib.so.0": []byte("library")},
			Links: map[string]string{"/usr/local/lib/tool/lib.so": "lib.so.0", "/usr/local/lib/lib": "/usr/local/lib/tool"},
		}, artefact.Extension{
			Name: "nic", Version: "v1", Files: map[string][]byte{
				"/usr/lib/firmware/nic/a.bin": []byte("blob"), "/usr/lib/firmware/intel-ucode/06-9e-09": []byte("ucode"), "/usr/local/bin/nic": []byte("nic"),
			},
		})
		_, c := newLab(t).node(img)
		for path, content := range map[string]string{
			"/usr/local/sbin/iscsid": "of over", "/usr/local/lib/lib/lib.so": "library", "/usr/lib/firmware/nic/a.bin": "blob", "/usr/local/bin/nic": "nic",
		} {
			want(t, path, must.Get(readFile(t.Context(), c, path))(t), content)
		}
		for root, files := range map[string][]string{
			"/usr/local/lib/tool": {"./", "lib.so -> lib.so.0", "lib.so.0 7"},
			"/usr/lib/firmware":   {"./", "nic/", "nic/a.bin 4"},
		} {
			got := must.Get(listed(t.Context(), c, &machineapi.ListRequest{Root: root, Recurse: true}))(t)
			got = slices.DeleteFunc(got, func(line string) bool { return line == "intel-ucode/" }) // the directory may remain
			must.Equal(t, root, files, got)
		}
	})
}

// TestNamesFollowTheIdentity: machine-id, IQN and NQN stay over a reboot, and are others on a new system disk.
func TestNamesFollowTheIdentity(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		read := func(c *client.Client) (names []string) {
			t.Helper()
			for _, at := range []string{"/etc/machine-id", "/etc/iscsi/initiatorname.iscsi", "/etc/nvme/hostid", "/etc/nvme/hostnqn"} {
				names = append(names, strings.TrimSpace(must.Get(readFile(t.Context(), c, at))(t)))
			}
			return names
		}
		create := func() (*box, []string) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"))
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
			l.running(workerAddr)
			return box, read(l.client(workerAddr, role.Admin))
		}
		box, first := create()
		if first[1] != "InitiatorName=iqn.2017-11.dev.talos:"+first[0] || first[3] != "nqn.2017-11.dev.talos:uuid:"+first[2] || len(first[0]) != 32 {
			t.Errorf("names: %q", first)
		}
		c := l.client(workerAddr, role.Admin)
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		want(t, "after a reboot", strings.Join(read(l.client(workerAddr, role.Admin)), " "), strings.Join(first, " "))
		box.guest.Kill()
		box, second := create()
		for i := range first {
			must.Equal(t, second[i]+" is that of the old system disk", false, first[i] == second[i])
		}
		box.guest.Kill()
	})
}
