package talosapi

import (
	"context"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"
)

// machineService is the part of the machine API that the lab uses; the rest is Unimplemented.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer
	boot        *boot
	maintenance bool
}

var _ machineapi.MachineServiceServer = (*machineService)(nil)

// Version implements the API.
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

// ServiceList implements the API.
func (s *machineService) ServiceList(context.Context, *emptypb.Empty) (*machineapi.ServiceListResponse, error) {
	list := &machineapi.ServiceList{}
	for _, svc := range s.boot.services() {
		list.Services = append(list.Services, svc.info())
	}
	return &machineapi.ServiceListResponse{Messages: []*machineapi.ServiceList{list}}, nil
}

// Hostname implements the API.
func (s *machineService) Hostname(context.Context, *emptypb.Empty) (*machineapi.HostnameResponse, error) {
	s.boot.mu.Lock()
	defer s.boot.mu.Unlock()
	name := "localhost"
	if s.boot.cfg != nil {
		name = hostnameOf(s.boot.cfg, s.boot.nodeID)
	}
	return &machineapi.HostnameResponse{Messages: []*machineapi.Hostname{{Hostname: name}}}, nil
}

// chunks splits a snapshot of etcd as apid streams it.
func chunks(content []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(content) > 0 {
			n := min(len(content), 32<<10)
			if !yield(content[:n]) {
				return
			}
			content = content[n:]
		}
	}
}

// Reboot implements the API: kexec unless the firmware is requested.
func (s *machineService) Reboot(_ context.Context, req *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	how := kexec
	if req.GetMode() == machineapi.RebootRequest_POWERCYCLE {
		how = powerCycle
	}
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: s.boot.order(how)}}}, nil
}

// Shutdown implements the API: the node is drained first, unless forced.
func (s *machineService) Shutdown(_ context.Context, req *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	s.boot.mu.Lock()
	s.boot.drain = !req.GetForce()
	s.boot.mu.Unlock()
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: s.boot.order(powerOff)}}}, nil
}
