package talosapi

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

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

// services are the machine's present services.
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
		case strings.HasPrefix(id, extensionPrefix): // nor these
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

// extensionServices are the services specified by the image's extensions
// (ExtensionServiceController).
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

// etcdStatus is the etcd service, which waits for a volume before its start.
func (b *boot) etcdStatus() service {
	e := b.etcdService()
	if e == nil {
		return service{id: "etcd", state: stateWaiting, unknown: true, message: "Waiting for volume " + labelEtcd + " to be mounted", at: b.started}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// unmet is etcd's unmet condition. While etcd is still being prepared the machine counts
// as ready, in stage booting.
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
func (b *boot) refresh(ctx context.Context) error {
	b.showing.Lock()
	defer b.showing.Unlock()
	b.mu.Lock()
	status := b.status
	b.mu.Unlock()
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
		svc := v1alpha1.NewService(s.id)
		svc.TypedSpec().Running, svc.TypedSpec().Healthy, svc.TypedSpec().Unknown = true, s.healthy, s.unknown
		rs = append(rs, svc)
	}
	if err := b.store.replace(ctx, v1alpha1.NamespaceName, v1alpha1.ServiceType, rs); err != nil {
		return err
	}
	r := runtime.NewMachineStatus()
	*r.TypedSpec() = status
	if err := b.store.set(ctx, r); err != nil {
		return err
	}
	b.tellStatus(status)
	if status.Stage == runtime.MachineStageRunning && status.Status.Ready {
		b.settled.Do(b.m.dropFallback)
	}
	return nil
}

// control is an operation on a service through the API: of the lab's services only the
// kubelet may be started and restarted (APIRestartAllowed and its like).
func (b *boot) control(ctx context.Context, id, operation string) error {
	i := slices.IndexFunc(b.services(), func(s service) bool { return s.id == id })
	if i < 0 {
		return fmt.Errorf("service %q not defined", id)
	}
	running := b.services()[i].state == stateRunning
	switch {
	case operation == "start" && running, operation == "stop" && !running:
		return nil
	case id != kubeletID || operation == "stop":
		return fmt.Errorf("service %q doesn't support %s operation via API", id, operation)
	}
	return b.kubelet.restart(ctx)
}

// ServiceStart implements the API.
func (s *machineService) ServiceStart(ctx context.Context, req *machineapi.ServiceStartRequest) (*machineapi.ServiceStartResponse, error) {
	if err := s.boot.control(ctx, req.GetId(), "start"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStartResponse{Messages: []*machineapi.ServiceStart{{Resp: fmt.Sprintf("Service %q started", req.GetId())}}}, nil
}

// ServiceStop implements the API.
func (s *machineService) ServiceStop(ctx context.Context, req *machineapi.ServiceStopRequest) (*machineapi.ServiceStopResponse, error) {
	if err := s.boot.control(ctx, req.GetId(), "stop"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceStopResponse{Messages: []*machineapi.ServiceStop{{Resp: fmt.Sprintf("Service %q stopped", req.GetId())}}}, nil
}

// ServiceRestart implements the API.
func (s *machineService) ServiceRestart(ctx context.Context, req *machineapi.ServiceRestartRequest) (*machineapi.ServiceRestartResponse, error) {
	if err := s.boot.control(ctx, req.GetId(), "restart"); err != nil {
		return nil, err
	}
	return &machineapi.ServiceRestartResponse{Messages: []*machineapi.ServiceRestart{{Resp: fmt.Sprintf("Service %q restarted", req.GetId())}}}, nil
}
