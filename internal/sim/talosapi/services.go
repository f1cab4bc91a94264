package talosapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	cosiclient "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	clusterapi "github.com/siderolabs/talos/pkg/machinery/api/cluster"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// machineService is the part of the machine API that the lab uses; the rest is Unimplemented.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer
	boot        *boot
	maintenance bool
}

var _ machineapi.MachineServiceServer = (*machineService)(nil)

func (s *machineService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	img := s.boot.med.image
	var features *machineapi.FeaturesInfo
	if s.boot.config() != nil {
		features = &machineapi.FeaturesInfo{Rbac: true}
	}
	mode := "cloud"
	if img.Platform == "metal" {
		mode = "metal"
	}
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{
		Version:  &machineapi.VersionInfo{Tag: img.TalosVersion, Os: "linux", Arch: img.Arch},
		Platform: &machineapi.PlatformInfo{Name: img.Platform, Mode: mode},
		Features: features,
	}}}, nil
}

func (s *machineService) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	list := &machineapi.ServiceList{}
	for _, svc := range s.boot.services() {
		list.Services = append(list.Services, svc.info())
	}
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{list}}, nil
}

func (s *machineService) Hostname(context.Context, *emptypb.Empty) (*machineapi.HostnameResponse, error) {
	name := "localhost"
	if s.boot.config() != nil {
		name = s.boot.hostname()
	}
	return &machineapi.HostnameResponse{Messages: []*machineapi.Hostname{{Hostname: name}}}, nil
}

// Reboot implements the API: the machine reboots by kexec unless the request asks for the firmware.
func (s *machineService) Reboot(_ context.Context, req *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	how := kexec
	if req.GetMode() == machineapi.RebootRequest_POWERCYCLE {
		how = powerCycle
	}
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: s.boot.order(how)}}}, nil
}

// Shutdown implements the API: the node is drained first, unless forced.
func (s *machineService) Shutdown(_ context.Context, req *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	holding(&s.boot.mu, func() { s.boot.drain = !req.GetForce() })
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: s.boot.order(powerOff)}}}, nil
}

// The states of a service, as Talos names them.
const (
	stateWaiting   = "Waiting"
	statePreparing = "Preparing"
	stateRunning   = "Running"
	stateStopping  = "Stopping"
	stateFinished  = "Finished"
	stateFailed    = "Failed"
)

// dashboard is the service without health checks.
const dashboard = "dashboard"

// service is a system service as the API lists it.
type service struct {
	id      string
	state   string
	message string // of the latest event
	healthy bool
	unknown bool   // not checked yet
	problem string // result of the latest health check
	at      time.Time
}

func (s service) info() *machineapi.ServiceInfo {
	events := &machineapi.ServiceEvents{}
	if s.message != "" {
		events.Events = append(events.Events, &machineapi.ServiceEvent{State: s.state, Msg: s.message, Ts: timestamppb.New(s.at)})
	}
	return &machineapi.ServiceInfo{
		Id: s.id, State: s.state, Events: events,
		Health: &machineapi.ServiceHealth{Healthy: s.healthy, Unknown: s.unknown, LastMessage: s.problem, LastChange: timestamppb.New(s.at)},
	}
}

func (b *boot) services() []service {
	ids := []string{"apid", "auditd", "containerd", dashboard, "machined", "syslogd", "udevd"}
	if cfg := b.config(); cfg != nil {
		ids = append(ids, "cri", "kubelet")
		if cfg.Machine().Type().IsControlPlane() {
			ids = append(ids, "etcd", "trustd")
		}
	}
	ids = append(ids, b.extended()...)
	slices.Sort(ids)
	all := make([]service, 0, len(ids))
	for _, id := range ids {
		s := service{id: id, state: stateRunning, message: "Health check successful", healthy: true, at: b.started}
		switch {
		case id == "etcd":
			s = b.etcdStatus()
		case id == dashboard:
			s.message, s.healthy, s.unknown = fmt.Sprintf(`Process Process(["/sbin/dashboard"]) started with PID %d`, b.pid(id)), false, true
		case strings.HasPrefix(id, extensionPrefix): // extensions' services are not checked either
			s.message, s.healthy, s.unknown = fmt.Sprintf("Started task %s for container %s", id, id), false, true
		case id == kubeletID:
			s = b.kubelet.service()
		}
		all = append(all, s)
	}
	return all
}

// extensionPrefix is the prefix of the IDs of extensions' services.
const extensionPrefix = "ext-"

// extensionServices returns the services specified by the image's extensions (ExtensionServiceController).
func extensionServices(img artefact.Image) []string {
	var ids []string
	for _, e := range img.Extensions {
		for name, content := range e.Files {
			var spec struct{ Name string }
			if path.Dir(name) == constants.ExtensionServiceConfigPath && path.Ext(name) == ".yaml" && yaml.Unmarshal(content, &spec) == nil && spec.Name != "" {
				ids = append(ids, extensionPrefix+spec.Name)
			}
		}
	}
	return ids
}

// etcdStatus returns the etcd service, which waits for a volume before its start.
func (b *boot) etcdStatus() service {
	e := b.etcdService()
	if e == nil {
		return service{id: "etcd", state: stateWaiting, unknown: true, message: "Waiting for volume " + labelEtcd + " to be mounted", at: b.started}
	}
	return guarded(&e.mu, &e.status)
}

// unmet returns etcd's unmet condition. While etcd is still being prepared the machine counts as ready, in stage
// booting.
func (s service) unmet() string {
	switch {
	case s.state == stateRunning && !s.unknown && !s.healthy:
		return s.id + " not healthy"
	case s.state == stateRunning || s.state == statePreparing:
		return ""
	}
	return s.id + " not running"
}

// refresh publishes the machine's stage as last set, and its present services.
func (b *boot) refresh(ctx context.Context) {
	b.showing.Lock()
	defer b.showing.Unlock()
	status := guarded(&b.mu, &b.status)
	var rs []resource.Resource
	for _, s := range b.services() {
		b.tellService(s)
		if u := s.unmet(); u != "" && status.Status.Ready && (status.Stage == runtime.MachineStageBooting || status.Stage == runtime.MachineStageRunning) {
			status.Status.Ready = false
			status.Status.UnmetConditions = append(slices.Clone(status.Status.UnmetConditions), runtime.UnmetCondition{Name: "services", Reason: u})
		}
		if s.state != stateRunning {
			continue
		}
		spec := v1alpha1.ServiceSpec{Running: true, Healthy: s.healthy, Unknown: s.unknown}
		rs = append(rs, filled(v1alpha1.NewService(s.id), spec))
	}
	err := b.store.replace(ctx, v1alpha1.NamespaceName, v1alpha1.ServiceType, rs)
	if err == nil {
		err = b.store.set(ctx, filled(runtime.NewMachineStatus(), status))
	}
	if err != nil {
		if ctx.Err() == nil {
			b.m.console("services: %v", err)
		}
		return
	}
	b.tellStatus(status)
	if status.Stage == runtime.MachineStageRunning && status.Status.Ready {
		b.settled.Do(b.m.dropFallback)
	}
}

// control starts, stops or restarts a service as the API does: of the lab's services only the kubelet may be started
// and restarted (APIRestartAllowed and its like).
func (b *boot) control(ctx context.Context, id, operation string) error {
	s, defined := first(b.services(), func(s service) bool { return s.id == id })
	running := s.state == stateRunning
	switch {
	case !defined:
		return fmt.Errorf("service %q not defined", id)
	case operation == "start" && running, operation == "stop" && !running:
		return nil
	case id != kubeletID || operation == "stop":
		return fmt.Errorf("service %q doesn't support %s operation via API", id, operation)
	}
	return b.kubelet.restart(ctx)
}

func (s *machineService) ServiceStart(ctx context.Context, req *machineapi.ServiceStartRequest) (*machineapi.ServiceStartResponse, error) {
	answer := &machineapi.ServiceStart{Resp: fmt.Sprintf("Service %q started", req.GetId())}
	err := s.boot.control(ctx, req.GetId(), "start")
	return &machineapi.ServiceStartResponse{Messages: []*machineapi.ServiceStart{answer}}, err
}

func (s *machineService) ServiceStop(ctx context.Context, req *machineapi.ServiceStopRequest) (*machineapi.ServiceStopResponse, error) {
	answer := &machineapi.ServiceStop{Resp: fmt.Sprintf("Service %q stopped", req.GetId())}
	err := s.boot.control(ctx, req.GetId(), "stop")
	return &machineapi.ServiceStopResponse{Messages: []*machineapi.ServiceStop{answer}}, err
}

func (s *machineService) ServiceRestart(ctx context.Context, req *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	answer := &machineapi.ServiceRestart{Resp: fmt.Sprintf("Service %q restarted", req.GetId())}
	err := s.boot.control(ctx, req.GetId(), "restart")
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{answer}}, err
}

// containers returns the containers in a namespace of a containerd: Talos' own services that run in a container, or
// the control plane's static pods. The machine does not simulate other pods.
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

// pods returns the control plane's pods, each with a sandbox and a container.
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

func (s *machineService) Containers(ctx context.Context, req *machineapi.ContainersRequest) (*machineapi.ContainersResponse, error) {
	all, err := s.boot.containers(ctx, req.GetNamespace(), req.GetDriver())
	return &machineapi.ContainersResponse{Messages: []*machineapi.Container{{Containers: all}}}, err
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

// staticPods returns the names of the kubelet's static pods: see watchPods.
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

// component returns the image of one of this machine's static pods.
func (b *boot) component(pod string) string {
	return strings.TrimSuffix(strings.TrimPrefix(pod, "kube-system/"), "-"+b.nodename())
}

func (b *boot) pid(name string) int { return 1000 + int(crc32.ChecksumIEEE([]byte(b.id+name))%30000) }

// Memory implements the API. The kernel itself uses a part of the VM's memory.
func (s *machineService) Memory(context.Context, *emptypb.Empty) (*machineapi.MemoryResponse, error) {
	total := uint64(s.boot.m.hw.Memory) * 1024 / 32 * 31
	return &machineapi.MemoryResponse{Messages: []*machineapi.Memory{{Meminfo: &machineapi.MemInfo{
		Memtotal: total, Memfree: total / 2, Memavailable: total / 4 * 3,
	}}}}, nil
}

// storageService is the API that preceded disk resources.
type storageService struct {
	storageapi.UnimplementedStorageServiceServer
	boot *boot
}

var _ storageapi.StorageServiceServer = (*storageService)(nil)

func (s *storageService) Disks(context.Context, *emptypb.Empty) (*storageapi.DisksResponse, error) {
	devs := s.boot.m.devices()
	system, _ := systemDisk(devs)
	answer := &storageapi.Disks{}
	for _, d := range devs {
		kind := storageapi.Disk_HDD
		if d.CDROM {
			kind = storageapi.Disk_CD
		}
		answer.Disks = append(answer.Disks, &storageapi.Disk{
			DeviceName: d.path(), Size: uint64(d.SizeBytes), Model: d.model, Serial: d.serial, Wwid: d.wwid, Type: kind, BusPath: d.busPath,
			SystemDisk: d.Key == system.Key, Subsystem: "/sys/class/block",
		})
	}
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{answer}}, nil
}

// healthPoll is how often Talos repeats a failed check, at speed 1.
const healthPoll = 5 * time.Second

// clusterService checks the health of all machines of the cluster.
type clusterService struct {
	clusterapi.UnimplementedClusterServiceServer
	machine *machineService
	proxy   *proxy
}

var _ clusterapi.ClusterServiceServer = (*clusterService)(nil)

// check is one condition of a healthy cluster (pkg/cluster/check).
type check struct {
	name   string
	assert func(ctx context.Context) error
}

// errSkip skips a check of something that the cluster does not have.
var errSkip = errors.New("SKIP")

// HealthCheck implements the API: it waits for one condition after the other and reports progress.
func (s *clusterService) HealthCheck(req *clusterapi.HealthCheckRequest, srv grpc.ServerStreamingServer[clusterapi.HealthCheckProgress]) error {
	if err := s.machine.checkControlPlane("cluster health check"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(srv.Context(), req.GetWaitTimeout().AsDuration())
	defer cancel()
	b := s.machine.boot
	nodes, _, _ := b.m.fw.hub.members(discoveryOf(b.config()))
	last := ""
	say := func(text string) {
		if text != last {
			_ = srv.Send(&clusterapi.HealthCheckProgress{Message: text}) // the caller may be gone
		}
		last = text
	}
	e := &examination{proxy: s.proxy, nodes: nodes}
	say(fmt.Sprintf("discovered nodes: %q", addresses(nodes)))
	for _, c := range e.checks() {
		say("waiting for " + c.name + ": ...")
		err := c.assert(ctx)
		for err != nil && !errors.Is(err, errSkip) {
			say("waiting for " + c.name + ": " + err.Error())
			if !b.m.fw.sleep(ctx, healthPoll) {
				return ctx.Err()
			}
			err = c.assert(ctx)
		}
		result := "OK"
		if err != nil {
			result = err.Error()
		}
		say("waiting for " + c.name + ": " + result)
	}
	return nil
}

// examination is a health check of the machines that discovery knows.
type examination struct {
	proxy *proxy
	nodes []cluster.AffiliateSpec
}

func (e *examination) checks() []check {
	b := e.proxy.boot
	return []check{
		{"etcd to be healthy", e.service("etcd")},
		{"etcd members to be consistent across nodes", e.consistent},
		{"etcd members to be control plane nodes", e.membersAreControlPlanes},
		{"apid to be ready", e.each(e.nodes, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := machineapi.NewMachineServiceClient(conn).Version(ctx, &emptypb.Empty{})
			return err
		})},
		{"all nodes memory sizes", e.each(e.nodes, memorySize)},
		{"all nodes disk sizes", e.each(e.nodes, judged(block.NamespaceName, block.VolumeStatusType, diskSizes))},
		{"no diagnostics", e.each(e.nodes, judged(runtime.NamespaceName, runtime.DiagnosticType, noDiagnostics))},
		{"kubelet to be healthy", e.service("kubelet")},
		{
			"all nodes to finish boot sequence",
			e.each(e.nodes, judged(runtime.NamespaceName, runtime.MachineStatusType, booted)),
		},
		{"all k8s nodes to report", b.nodesReport(e.nodes)},
		{
			"all control plane static pods to be running",
			e.each(e.controlPlanes(), judged(k8s.NamespaceName, k8s.StaticPodStatusType, staticPods)),
		},
		{"all control plane components to be ready", func(ctx context.Context) error {
			for _, app := range []string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
				if err := b.podsReady(ctx, app, len(e.controlPlanes())); err != nil {
					return err
				}
			}
			return nil
		}},
		{"all k8s nodes to report ready", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			if names := list.unready(); err == nil && len(names) > 0 {
				err = fmt.Errorf("some nodes are not ready: %v", names)
			}
			return err
		}},
		{"kube-proxy to report ready", b.workloadReady("daemonsets", "kube-proxy")},
		{"coredns to report ready", b.workloadReady("deployments", "kube-dns")},
		{"all k8s nodes to report schedulable", func(ctx context.Context) error {
			list, err := b.kubernetes(ctx, "/api/v1/nodes")
			for _, i := range list.Items {
				if i.Spec.Unschedulable {
					return fmt.Errorf("some nodes are not schedulable: [%s]", i.Metadata.Name)
				}
			}
			return err
		}},
	}
}

func addresses(nodes []cluster.AffiliateSpec) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, address(n).String())
	}
	return all
}

func address(n cluster.AffiliateSpec) netip.Addr {
	if len(n.Addresses) == 0 {
		return netip.Addr{}
	}
	return n.Addresses[0]
}

func (e *examination) controlPlanes() []cluster.AffiliateSpec {
	return slices.DeleteFunc(slices.Clone(e.nodes), func(n cluster.AffiliateSpec) bool { return !n.MachineType.IsControlPlane() })
}

// each asks the machines one after the other, in the caller's name.
func (e *examination) each(nodes []cluster.AffiliateSpec, ask func(context.Context, *grpc.ClientConn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, n := range nodes {
			out, conn, err := e.proxy.connect(ctx, address(n).String())
			if err == nil {
				err = ask(out, conn)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", address(n), err)
			}
		}
		return nil
	}
}

// service requires a service of the control planes to be healthy.
func (e *examination) service(id string) func(context.Context) error {
	return e.each(e.controlPlanes(), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := machineapi.NewMachineServiceClient(conn).ServiceList(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for _, s := range answer.GetMessages()[0].GetServices() {
			switch {
			case s.GetId() != id:
			case s.GetState() != stateRunning:
				return fmt.Errorf("service %q not in expected state %q: current state [%s]", id, stateRunning, s.GetState())
			case !s.GetHealth().GetHealthy():
				return fmt.Errorf("service is not healthy: %s", id)
			}
		}
		return nil
	})
}

func (e *examination) consistent(ctx context.Context) error {
	var first []string
	return e.each(e.controlPlanes(), func(ctx context.Context, conn *grpc.ClientConn) error {
		answer, err := machineapi.NewMachineServiceClient(conn).EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		if err != nil {
			return err
		}
		var names []string
		for _, m := range answer.GetMessages()[0].GetMembers() {
			names = append(names, m.GetHostname())
		}
		slices.Sort(names)
		if first == nil {
			first = names
		}
		if !slices.Equal(first, names) {
			return fmt.Errorf("expected to have %v members, got %v", first, names)
		}
		return nil
	})(ctx)
}

func (e *examination) membersAreControlPlanes(ctx context.Context) error {
	c, err := e.proxy.boot.reachEtcd(ctx)
	if err != nil {
		return err
	}
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	known := addresses(e.controlPlanes())
	for _, m := range members {
		if !slices.ContainsFunc(known, func(addr string) bool { return m.PeerURL == "https://"+addr+":2380" }) {
			return fmt.Errorf("etcd member %s (%s) is not one of the control plane node ips %q", m.Name, m.PeerURL, known)
		}
	}
	return nil
}

// Minimum resources of a machine (pkg/minimal, of a worker).
const (
	leastMemory    = 874 * mib
	leastEphemeral = 3 * gib
)

func memorySize(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := machineapi.NewMachineServiceClient(conn).Memory(ctx, &emptypb.Empty{})
	if err != nil {
		return err
	}
	if total := answer.GetMessages()[0].GetMeminfo().GetMemtotal() * 1024; total < leastMemory {
		return fmt.Errorf("node does not meet memory requirements: expected at least %d MiB, actual %d MiB", leastMemory/mib, total/mib)
	}
	return nil
}

// judged judges all resources of a kind on another machine.
func judged[T resource.Resource](
	ns resource.Namespace, kind resource.Type, judge func([]T) error,
) func(context.Context, *grpc.ClientConn) error {
	return func(ctx context.Context, conn *grpc.ClientConn) error {
		st := state.WrapCore(cosiclient.NewAdapter(cosi.NewStateClient(conn)))
		list, err := safe.StateList[T](ctx, st, resource.NewMetadata(ns, kind, "", resource.VersionUndefined))
		if err != nil {
			return err
		}
		return judge(slices.AppendSeq([]T(nil), list.All()))
	}
}

func diskSizes(volumes []*block.VolumeStatus) error {
	for _, v := range volumes {
		if v.Metadata().ID() == labelEphemeral && v.TypedSpec().Size < leastEphemeral {
			return fmt.Errorf("ephemeral partition %q is too small, actual %d", v.TypedSpec().Location, v.TypedSpec().Size)
		}
	}
	return nil
}

func noDiagnostics(all []*runtime.Diagnostic) error {
	if len(all) > 0 {
		return fmt.Errorf("active diagnostics: %s", all[0].Metadata().ID())
	}
	return nil
}

func booted(all []*runtime.MachineStatus) error {
	if len(all) > 0 && all[0].TypedSpec().Stage != runtime.MachineStageRunning {
		return fmt.Errorf("nodes are not running: %s", all[0].TypedSpec().Stage)
	}
	return nil
}

func staticPods(all []*k8s.StaticPodStatus) error {
	if want := 3; len(all) != want {
		return fmt.Errorf("missing static pods: %d of %d run", len(all), want)
	}
	return nil
}

// kubeObjects is the part of a list of Kubernetes' nodes or pods that the checks read.
type kubeObjects struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ Unschedulable bool }
		Status   struct {
			Conditions []struct{ Type, Status string }
			Addresses  []struct{ Type, Address string }
		}
	}
}

// unready returns the names of the objects that are not Ready.
func (o kubeObjects) unready() []string {
	var names []string
	for _, i := range o.Items {
		for _, c := range i.Status.Conditions {
			if c.Type == "Ready" && c.Status != "True" {
				names = append(names, i.Metadata.Name)
			}
		}
	}
	return names
}

// kubernetes requests a list from the cluster's API server, as an administrator.
func (b *boot) kubernetes(ctx context.Context, path string) (list kubeObjects, err error) {
	cfg := b.config()
	organization := cfg.Cluster().AdminKubeconfig().CertOrganization()
	options := clientOptions("talos:health", organization, allowedTimeSkew, time.Hour)
	pair, roots, err := issue(cfg.K8sAPIServerCAConfig().IssuingCA(), options...)
	if err != nil {
		return list, fmt.Errorf("error generating Kubernetes client certificate: %w", err)
	}
	transport := &http.Transport{
		DialContext: b.m.fw.o.Network.Dialer().DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*pair.Certificate}, RootCAs: roots},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.K8sClusterConfig().ClusterEndpoint().String()+path, nil)
	if err != nil {
		return list, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return list, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return list, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return list, json.NewDecoder(resp.Body).Decode(&list)
}

// nodesReport requires that Kubernetes' nodes are exactly the machines.
func (b *boot) nodesReport(nodes []cluster.AffiliateSpec) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/api/v1/nodes")
		if err != nil {
			return err
		}
		var there []string
		for _, i := range list.Items {
			for _, a := range i.Status.Addresses {
				if a.Type == "InternalIP" {
					there = append(there, a.Address)
				}
			}
		}
		expected := addresses(nodes)
		if addr, missing := first(expected, func(a string) bool { return !slices.Contains(there, a) }); missing {
			return fmt.Errorf("can't find expected node with IPs [%q]", addr)
		}
		if addr, unexpected := first(there, func(a string) bool { return !slices.Contains(expected, a) }); unexpected {
			return fmt.Errorf("unexpected nodes with IPs [%q]", addr)
		}
		return nil
	}
}

// podsReady requires n ready pods of an application in kube-system; -1 is any number.
func (b *boot) podsReady(ctx context.Context, app string, n int) error {
	list, err := b.kubernetes(ctx, "/api/v1/namespaces/kube-system/pods?labelSelector="+url.QueryEscape("k8s-app="+app))
	if err != nil {
		return err
	}
	if n >= 0 && len(list.Items) != n {
		return fmt.Errorf("expected number of pods for %s to be %d, got %d", app, n, len(list.Items))
	}
	if names := list.unready(); len(names) > 0 {
		return fmt.Errorf("some pods are not ready for %s: %v", app, names)
	}
	return nil
}

// workloadReady requires the pods of a workload in kube-system to be ready, if it exists.
func (b *boot) workloadReady(kind, app string) func(context.Context) error {
	return func(ctx context.Context) error {
		list, err := b.kubernetes(ctx, "/apis/apps/v1/namespaces/kube-system/"+kind+"?labelSelector="+url.QueryEscape("k8s-app="+app))
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return errSkip
		}
		return b.podsReady(ctx, app, -1)
	}
}
