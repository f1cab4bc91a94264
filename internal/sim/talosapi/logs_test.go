package talosapi_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

const system, inContainerd = constants.SystemContainerdNamespace, common.ContainerDriver_CONTAINERD

// lines are the lines of a log, without following it.
func lines(t *testing.T, c *client.Client, namespace string, driver common.ContainerDriver, id string, tail int32) ([]string, error) {
	t.Helper()
	s, err := c.Logs(t.Context(), namespace, driver, id, false, tail)
	if err != nil {
		t.Fatal(err)
	}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.extended()
		all, err := lines(t, c, system, inContainerd, "machined", -1)
		if err != nil || !strings.HasSuffix(all[0], " initialize sequence: 8 phase(s)") {
			t.Fatalf("machined: %q, %v", all, err)
		}
		last, err := lines(t, c, system, inContainerd, "machined", 2)
		if diff := cmp.Diff(all[len(all)-2:], last); diff != "" || err != nil {
			t.Errorf("the last two lines (-want +got):\n%s%v", diff, err)
		}
		kernel, err := lines(t, c, system, inContainerd, "kernel", -1)
		if got := strings.Join(kernel, "\n") + "\n"; err != nil || got != dmesg(t, c) {
			t.Errorf("kernel:\n%s%v", got, err)
		}
		server, err := lines(t, c, system, inContainerd, "etcd", -1)
		if err != nil || len(server) != 1 || !strings.Contains(server[0], `"msg":"ready to serve client requests"}`) {
			t.Errorf("etcd: %q, %v", server, err)
		}
		for id, want := range map[string]string{"kubelet": "", "apid": "", "nonsense": `log "nonsense" was not registered`} {
			said, err := lines(t, c, system, inContainerd, id, -1)
			if got := client.Status(err).Message(); len(said) > 0 || err != nil && got != want || err == nil && want != "" {
				t.Errorf("%s: %q, %v", id, said, err)
			}
		}
		pod := "kube-system/kube-apiserver-cp1"
		if _, err := lines(t, c, constants.K8sContainerdNamespace, common.ContainerDriver_CRI, pod, -1); err != nil {
			t.Error(err)
		}
		_, err = lines(t, c, constants.K8sContainerdNamespace, common.ContainerDriver_CRI, pod+":nonsense", -1)
		requireError(t, "no container", err, codes.Unknown, "not found")
		_, err = lines(t, c, "", common.ContainerDriver_CRI, pod, -1)
		requireError(t, "no namespace", err, codes.InvalidArgument, "namespace can't be empty")
		registered, err := c.LogsContainers(t.Context())
		if err != nil || !slices.Contains(registered.GetMessages()[0].GetIds(), "ext-guest") {
			t.Errorf("registered logs %v, %v", registered, err)
		}
		follow, err := c.Logs(t.Context(), system, inContainerd, "machined", true, 0)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.ServiceRestart(t.Context(), "kubelet"); err != nil {
			t.Fatal(err)
		}
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

// extended is a running control plane with one extension's service; the client is its
// administrator's.
func (l *lab) extended() *client.Client {
	l.t.Helper()
	img := image("old")
	img.TalosVersion = "v1.14.1"
	img.Extensions = append(img.Extensions, artefact.Extension{
		Name: "guest", Version: "v1", Files: map[string][]byte{constants.ExtensionServiceConfigPath + "/qemu.yaml": []byte("name: guest\ncontainer: {entrypoint: ./guest}\n")},
	})
	conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
	b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, img)))
	b.on()
	l.t.Cleanup(func() { b.guest.Kill() })
	l.running(cpAddr)
	return l.client(cpAddr, role.Admin)
}

func TestContainersProcessesAndMounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.extended()
		got := map[string]string{}
		note := func(key, value string) { got[key] += " " + value }
		for key, in := range map[string]struct {
			namespace string
			driver    common.ContainerDriver
		}{"system": {system, inContainerd}, "kubernetes": {constants.K8sContainerdNamespace, common.ContainerDriver_CRI}, "elsewhere": {"moby", inContainerd}} {
			answer, err := c.Containers(t.Context(), in.namespace, in.driver)
			if err != nil {
				t.Fatal(err)
			}
			for _, info := range answer.GetMessages()[0].GetContainers() {
				note(key, info.GetName()+" "+info.GetImage()+" "+info.GetStatus())
			}
		}
		processes, err := c.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes.GetMessages()[0].GetProcesses() {
			note("processes", p.GetCommand())
		}
		mounts, err := c.Mounts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mounts.GetMessages()[0].GetStats() {
			note("mounts", m.GetFilesystem()+" "+m.GetMountedOn())
		}
		all, err := safe.StateListAll[*runtime.MountStatus](t.Context(), c.COSI)
		if err != nil {
			t.Fatal(err)
		}
		for m := range all.All() {
			note("mount statuses", m.Metadata().ID()+" "+m.TypedSpec().Source+" "+m.TypedSpec().Target)
		}
		want := map[string]string{
			"system": " apid  RUNNING ext-guest  RUNNING trustd  RUNNING",
			"kubernetes": " kube-system/kube-apiserver-cp1  SANDBOX_READY kube-apiserver registry.k8s.io/kube-apiserver:v1.35.4 CONTAINER_RUNNING" +
				" kube-system/kube-controller-manager-cp1  SANDBOX_READY kube-controller-manager registry.k8s.io/kube-controller-manager:v1.35.4 CONTAINER_RUNNING" +
				" kube-system/kube-scheduler-cp1  SANDBOX_READY kube-scheduler registry.k8s.io/kube-scheduler:v1.35.4 CONTAINER_RUNNING",
			"processes":      " init apid containerd containerd dashboard etcd kubelet trustd systemd-udevd kube-apiserver kube-controller-manager kube-scheduler",
			"mounts":         " /dev/vda3 /system/state /dev/vda4 /var",
			"mount statuses": " EPHEMERAL /dev/vda4 /var STATE /dev/vda3 /system/state",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		_, err = c.Containers(t.Context(), system, common.ContainerDriver_CRI)
		requireError(t, "CRI elsewhere", err, codes.Unknown, "CRI inspector is supported only for K8s namespace")
		for _, call := range []func() error{
			func() error {
				_, err := l.client(cpAddr, role.Reader).Containers(t.Context(), system, inContainerd)
				return err
			},
			func() error { _, err := l.client(cpAddr, role.Reader).Processes(t.Context()); return err },
			func() error { _, err := l.client(cpAddr, role.Reader).Mounts(t.Context()); return err },
		} {
			if err := call(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestNetworkFacts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newLab(t).extended()
		var got []string
		for _, kind := range []resource.Kind{
			network.NewLinkStatus(network.NamespaceName, "").Metadata(), network.NewAddressStatus(network.NamespaceName, "").Metadata(),
			network.NewRouteStatus(network.NamespaceName, "").Metadata(), k8s.NewNodeIP(k8s.NamespaceName, "").Metadata(),
			runtime.NewImageFactorySchematic(runtime.NamespaceName, "").Metadata(), runtime.NewMetaKey(runtime.NamespaceName, "").Metadata(),
		} {
			list, err := c.COSI.List(t.Context(), kind)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range list.Items {
				got = append(got, kind.Type()+" "+r.Metadata().ID())
			}
		}
		if diff := cmp.Diff([]string{
			"LinkStatuses.net.talos.dev eth0", "LinkStatuses.net.talos.dev lo",
			"AddressStatuses.net.talos.dev eth0/127.42.7.11/24", "AddressStatuses.net.talos.dev lo/127.0.0.1/8",
			"RouteStatuses.net.talos.dev inet4//127.42.7.0/24/0", "NodeIPs.kubernetes.talos.dev kubelet",
			"ImageFactorySchematics.runtime.talos.dev image-factory-schematic",
		}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
