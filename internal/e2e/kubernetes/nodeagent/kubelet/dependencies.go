package main

import (
	"context"
	"path/filepath"
	"syscall"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubeletutil "k8s.io/kubernetes/pkg/kubelet/util"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/cri"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

// settings are the kubelet's flags and its configuration file.
func settings(c node.Config) (*options.KubeletServer, error) {
	flags := options.NewKubeletFlags()
	flags.RootDirectory = c.Kubelet()
	flags.CertDirectory = filepath.Join(c.Kubelet(), "pki")
	flags.HostnameOverride = c.Name
	flags.NodeLabels = c.Labels
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	config.PodLogsDir = c.PodLogs()
	config.MaxPods = int32(c.MaxPods)
	config.EnableServer = false
	config.RegisterNode = true
	config.CgroupsPerQOS = false
	config.EnforceNodeAllocatable = nil
	config.ReadOnlyPort, config.HealthzPort = 0, 0
	// The machine is shared with others: how full it is is not for the kubelet to mend.
	config.EvictionHard, config.ImageGCHighThresholdPercent = nil, 100
	config.MakeIPTablesUtilChains = false
	config.EnableControllerAttachDetach = false
	// As a cluster has one; containers have this machine's resolv.conf.
	config.ClusterDNS = []string{"10.96.0.10"}
	config.ClusterDomain = "cluster.local"
	// A kubelet that is asked to sync a pod does that at once; this is how soon it looks
	// again by itself, for instance for a missing Secret.
	config.SyncFrequency.Duration = 5 * time.Second
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	config.MaxOpenFiles = int64(files.Cur)
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, nil
}

// dependencies are what the kubelet needs of its node. What limits and measures
// containers, cgroups, is left out as in Kubernetes' own hollow nodes.
func dependencies(c node.Config, credentials *rest.Config) (*kubelet.Dependencies, error) {
	credentials.QPS = -1
	client, err := kubernetes.NewForConfig(credentials)
	if err != nil {
		return nil, err
	}
	runtime, err := cri.New(c, credentials.Host)
	if err != nil {
		return nil, err
	}
	mounter := mount.NewWithoutSystemd("")
	return &kubelet.Dependencies{
		KubeClient:                client,
		HeartbeatClient:           client,
		EventClient:               client.CoreV1(),
		RemoteRuntimeService:      runtime,
		RemoteImageService:        runtime.Images(),
		CAdvisorInterface:         machine{c},
		ContainerManager:          cm.NewStubContainerManager(),
		OSInterface:               kubecontainer.RealOS{},
		OOMAdjuster:               oom.NewFakeOOMAdjuster(),
		Mounter:                   mounter,
		Subpather:                 subpath.New(mounter),
		HostUtil:                  hostutil.NewHostUtil(),
		VolumePlugins:             volumePlugins(),
		PodStartupLatencyTracker:  kubeletutil.NewPodStartupLatencyTracker(),
		NodeStartupLatencyTracker: kubeletutil.NewNodeStartupLatencyTracker(klog.Background()),
		TracerProvider:            nooptrace.NewTracerProvider(),
	}, nil
}

func volumePlugins() (all []volume.VolumePlugin) {
	for _, plugins := range [][]volume.VolumePlugin{
		emptydir.ProbeVolumePlugins(), secret.ProbeVolumePlugins(), configmap.ProbeVolumePlugins(),
		projected.ProbeVolumePlugins(), downwardapi.ProbeVolumePlugins(), hostpath.ProbeVolumePlugins(volume.VolumeConfig{}),
	} {
		all = append(all, plugins...)
	}
	return all
}

// machine tells the kubelet of the machine's capacity; of containers, nothing is measured.
type machine struct{ config node.Config }

var _ cadvisor.Interface = machine{}

func (machine) Start() error { return nil }

func (machine) ContainerInfoV2(string, cadvisorapi.RequestOptions) (map[string]cadvisorapi.ContainerInfo, error) {
	return nil, nil
}

func (machine) GetRequestedContainersInfo(string, cadvisorapi.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	return nil, nil
}

func (m machine) MachineInfo(klog.Logger) (*cadvisorapi.MachineInfo, error) {
	return &cadvisorapi.MachineInfo{
		NumCores: m.config.CPUs, MemoryCapacity: uint64(m.config.MemoryMiB) << 20,
		MachineID: m.config.Name, SystemUUID: m.config.Name, BootID: m.config.Name,
	}, nil
}

func (machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{ContainerOsVersion: "node agent"}, nil
}

func (m machine) RootFsInfo() (cadvisorapi.FsInfo, error) { return m.GetDirFsInfo(m.config.Dir) }

func (m machine) ImagesFsInfo(context.Context) (cadvisorapi.FsInfo, error) { return m.RootFsInfo() }

func (m machine) ContainerFsInfo(context.Context) (cadvisorapi.FsInfo, error) { return m.RootFsInfo() }

func (machine) GetDirFsInfo(path string) (cadvisorapi.FsInfo, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return cadvisorapi.FsInfo{}, err
	}
	size := uint64(s.Bsize)
	return cadvisorapi.FsInfo{
		Timestamp: time.Now(), Device: "/", Mountpoint: "/",
		Capacity: s.Blocks * size, Available: s.Bavail * size, Usage: (s.Blocks - s.Bfree) * size,
		Inodes: &s.Files, InodesFree: &s.Ffree,
	}, nil
}
