package talosapi

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// containers are those in a namespace of a containerd: Talos' own services that run in
// one, or the control plane's static pods. The machine does not simulate other pods.
func (b *boot) containers(ctx context.Context, namespace string, driver common.ContainerDriver) ([]*machineapi.ContainerInfo, error) {
	switch {
	case namespace == "":
		return nil, status.Error(codes.InvalidArgument, "namespace can't be empty")
	case driver == common.ContainerDriver_CRI && namespace != constants.K8sContainerdNamespace:
		return nil, errors.New("CRI inspector is supported only for K8s namespace")
	case driver == common.ContainerDriver_CRI:
		return b.pods(ctx)
	case namespace != constants.SystemContainerdNamespace:
		return nil, nil
	}
	var all []*machineapi.ContainerInfo
	for _, s := range b.services() {
		if s.state == stateRunning && (s.id == "apid" || s.id == "trustd" || strings.HasPrefix(s.id, extensionPrefix)) {
			all = append(all, &machineapi.ContainerInfo{
				Namespace: namespace, Id: s.id, InternalId: s.id, PodId: s.id, Name: s.id, Pid: uint32(b.pid(s.id)), Status: "RUNNING",
			})
		}
	}
	return all, nil
}

// pods are the control plane's, each with a sandbox and a container.
func (b *boot) pods(ctx context.Context) ([]*machineapi.ContainerInfo, error) {
	names, err := b.staticPods(ctx)
	if err != nil {
		return nil, err
	}
	var all []*machineapi.ContainerInfo
	shown := b.kubelet.shown()
	for _, pod := range names {
		id, short := b.component(pod), digest([]byte(b.id + pod))[:12]
		state := "CONTAINER_RUNNING"
		if shown[id].Waiting != "" {
			state = "CONTAINER_EXITED"
		}
		all = append(all,
			&machineapi.ContainerInfo{
				Namespace: constants.K8sContainerdNamespace, Id: pod, InternalId: digest([]byte(pod + b.id)), PodId: pod, Name: pod,
				Pid: uint32(b.pid(pod)), Status: "SANDBOX_READY",
			},
			&machineapi.ContainerInfo{
				Namespace: constants.K8sContainerdNamespace, Id: pod + ":" + id + ":" + short, InternalId: short, PodId: pod, Name: id, Image: shown[id].image(),
				Pid: uint32(b.pid(id)), Status: state,
			})
	}
	return all, nil
}

// Containers implements the API.
func (s *machineService) Containers(ctx context.Context, req *machineapi.ContainersRequest) (*machineapi.ContainersResponse, error) {
	all, err := s.boot.containers(ctx, req.GetNamespace(), req.GetDriver())
	if err != nil {
		return nil, err
	}
	return &machineapi.ContainersResponse{Messages: []*machineapi.Container{{Containers: all}}}, nil
}

// Processes implements the API: machined, and the processes of services and containers.
// Their resource usage is not simulated.
func (s *machineService) Processes(ctx context.Context, _ *emptypb.Empty) (*machineapi.ProcessesResponse, error) {
	b := s.boot
	pods, err := b.staticPods(ctx)
	if err != nil {
		return nil, err
	}
	all := &machineapi.Process{}
	add := func(pid, parent int, executable string) {
		all.Processes = append(all.Processes, &machineapi.ProcessInfo{
			Pid: int32(pid), Ppid: int32(parent), State: "S", Threads: 1, Command: path.Base(executable), Executable: executable, Args: executable,
		})
	}
	add(1, 0, "/sbin/init")
	for _, svc := range b.services() {
		if svc.state == stateRunning && executables[svc.id] != "" {
			add(b.pid(svc.id), 1, executables[svc.id])
		}
	}
	for _, pod := range pods {
		id := b.component(pod)
		add(b.pid(id), 1, "/usr/local/bin/"+id)
	}
	return &machineapi.ProcessesResponse{Messages: []*machineapi.Process{all}}, nil
}

// executables are the programs of services that are separate processes; machined is the
// first process, and auditd and syslogd are part of it.
var executables = map[string]string{
	"apid": "/apid", "containerd": "/usr/bin/containerd", "cri": "/usr/bin/containerd", "dashboard": "/sbin/dashboard",
	"etcd": "/usr/local/bin/etcd", "kubelet": "/usr/local/bin/kubelet", "trustd": "/trustd", "udevd": "/usr/bin/systemd-udevd",
}

// Mounts implements the API: the mounted volumes of disks.
func (s *machineService) Mounts(context.Context, *emptypb.Empty) (*machineapi.MountsResponse, error) {
	all := &machineapi.Mounts{}
	for _, m := range s.boot.mounted(s.boot.m.devices()) {
		size := partitionSizes(m.dev)[m.index-1]
		all.Stats = append(all.Stats, &machineapi.MountStat{
			Filesystem: "/dev/" + m.dev.partitionName(m.index), Size: size, Available: size - min(size, uint64(len(m.part.Data))), MountedOn: m.target,
		})
	}
	return &machineapi.MountsResponse{Messages: []*machineapi.Mounts{all}}, nil
}

// ImageList implements the API that preceded ImageService.
func (s *machineService) ImageList(req *machineapi.ImageListRequest, srv grpc.ServerStreamingServer[machineapi.ImageListResponse]) error {
	in, err := containerd(&common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: req.GetNamespace()})
	if err != nil {
		return err
	}
	refs, images := s.boot.m.list(in)
	for i, c := range images {
		if err := srv.Send(&machineapi.ImageListResponse{Name: refs[i], Digest: c.digest, Size: c.size, CreatedAt: timestamppb.New(c.pulled)}); err != nil {
			return err
		}
	}
	return nil
}

// staticPods are the names of the kubelet's static pods: see watchPods.
func (b *boot) staticPods(ctx context.Context) ([]string, error) {
	list, err := b.store.st.List(ctx, resource.NewMetadata(k8s.NamespaceName, k8s.StaticPodStatusType, "", resource.VersionUndefined))
	if err != nil {
		return nil, fmt.Errorf("list static pods: %w", err)
	}
	var names []string
	for _, r := range list.Items {
		names = append(names, r.Metadata().ID())
	}
	return names, nil
}

// component is the image of one of this machine's static pods.
func (b *boot) component(pod string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSuffix(strings.TrimPrefix(pod, "kube-system/"), "-"+nodenameOf(b.cfg, b.nodeID))
}

// pid is the process ID of a process of this boot, derived from its name.
func (b *boot) pid(name string) int {
	return 1000 + int(crc32.ChecksumIEEE([]byte(b.id+name))%30000)
}
