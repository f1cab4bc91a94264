package talosapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
)

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
		}
		if err != nil {
			return nil, err
		}
		all = append(all, strings.TrimSuffix(string(piece.GetBytes()), "\n"))
	}
}

func TestLogs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		c := l.extended()
		all, err := lines(t, c, system, inContainerd, "machined", -1)
		if err != nil || !strings.HasSuffix(all[0], " initialize sequence: 8 phase(s)") {
			t.Fatalf("machined: %q, %v", all, err)
		}
		last, err := lines(t, c, system, inContainerd, "machined", 2)
		if diff := cmp.Diff(all[len(all)-2:], last); diff != "" || err != nil {
			t.Errorf("the last two lines (-want +got):\n%s%v", diff, err)
		}
		pod := "kube-system/kube-apiserver-cp1"
		_, err = lines(t, c, constants.K8sContainerdNamespace, common.ContainerDriver_CRI, pod+":nonsense", -1)
		requireError(t, "no container", err, codes.Unknown, "not found")
		_, err = lines(t, c, "", common.ContainerDriver_CRI, pod, -1)
		requireError(t, "no namespace", err, codes.InvalidArgument, "namespace can't be empty")
		registered, err := c.LogsContainers(t.Context())
		if err != nil || !slices.Contains(registered.GetMessages()[0].GetIds(), "ext-guest") {
			t.Errorf("registered logs %v, %v", registered, err)
		}
		follow := must.Get(c.Logs(t.Context(), system, inContainerd, "machined", true, 0))(t)
		synctest.Wait()
		must.Get(c.ServiceRestart(t.Context(), "kubelet"))(t)
		for _, want := range []string{
			"(Stopping): Sending SIGTERM to task", "(Finished): Service finished successfully", "(Preparing): Running pre state",
			"(Running): Started task kubelet", "(Running): Health check successful",
		} {
			piece, err := follow.Recv()
			if err != nil || !strings.Contains(string(piece.GetBytes()), " service[kubelet]"+want) {
				t.Errorf("followed: %q, %v; want %q", piece.GetBytes(), err, want)
			}
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
