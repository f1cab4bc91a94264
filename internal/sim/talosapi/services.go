package talosapi

import (
	"context"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/v1alpha1"
)

// The states of a service, as Talos names them.
const (
	stateWaiting   = "Waiting"
	statePreparing = "Preparing"
	stateRunning   = "Running"
	stateFinished  = "Finished"
)

// service is a system service as the API lists it.
type service struct {
	id      string
	state   string
	message string // of the last event
	healthy bool
	unknown bool   // nobody has checked yet
	problem string // what the last health check met
}

func (s service) info() *machineapi.ServiceInfo {
	events := &machineapi.ServiceEvents{}
	if s.message != "" {
		events.Events = append(events.Events, &machineapi.ServiceEvent{State: s.state, Msg: s.message})
	}
	return &machineapi.ServiceInfo{
		Id: s.id, State: s.state, Events: events,
		Health: &machineapi.ServiceHealth{Healthy: s.healthy, Unknown: s.unknown, LastMessage: s.problem},
	}
}

// services are those that the machine has now.
func (b *boot) services() []service {
	ids := []string{"apid", "machined"}
	if cfg := b.config(); cfg != nil {
		ids = append(ids, "containerd", "cri", "kubelet")
		if cfg.Machine().Type().IsControlPlane() {
			ids = append(ids, "etcd", "trustd")
		}
	}
	slices.Sort(ids)
	all := make([]service, 0, len(ids))
	for _, id := range ids {
		s := service{id: id, state: stateRunning, healthy: true}
		if id == "etcd" {
			s = b.etcdStatus()
		}
		all = append(all, s)
	}
	return all
}

// etcdStatus is the service etcd, which waits for a volume before it is started.
func (b *boot) etcdStatus() service {
	e := b.etcdService()
	if e == nil {
		return service{id: "etcd", state: stateWaiting, unknown: true, message: "Waiting for volume " + labelEtcd + " to be mounted"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status
}

// unmet is what the state of etcd leaves to be wished for. While it is
// still being prepared the machine counts as ready, in stage booting.
func (s service) unmet() string {
	switch {
	case s.state == stateRunning && !s.unknown && !s.healthy:
		return s.id + " not healthy"
	case s.state == stateRunning || s.state == statePreparing:
		return ""
	}
	return s.id + " not running"
}

// refresh shows the machine's stage as it was last set, and its services as they are now.
func (b *boot) refresh(ctx context.Context) error {
	b.showing.Lock()
	defer b.showing.Unlock()
	b.mu.Lock()
	status := b.status
	b.mu.Unlock()
	var rs []resource.Resource
	for _, s := range b.services() {
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
	kind := resource.NewMetadata(v1alpha1.NamespaceName, v1alpha1.ServiceType, "", resource.VersionUndefined)
	if err := b.store.replace(ctx, kind, rs); err != nil {
		return err
	}
	r := runtime.NewMachineStatus()
	*r.TypedSpec() = status
	if err := b.store.set(ctx, r); err != nil {
		return err
	}
	if status.Stage == runtime.MachineStageRunning && status.Status.Ready {
		b.settled.Do(b.m.dropFallback)
	}
	return nil
}
