package talosapi

import (
	"context"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// machineService is the part of the machine API that the lab needs; the rest is Unimplemented.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer
	boot        *boot
	maintenance bool
}

var _ machineapi.MachineServiceServer = (*machineService)(nil)

// Version implements the API.
func (s *machineService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	img := s.boot.med.image
	mode := "cloud"
	if img.Platform == "metal" {
		mode = "metal"
	}
	return &machineapi.VersionResponse{Messages: []*machineapi.Version{{
		Version:  &machineapi.VersionInfo{Tag: img.TalosVersion, Os: "linux", Arch: img.Arch},
		Platform: &machineapi.PlatformInfo{Name: img.Platform, Mode: mode},
		Features: &machineapi.FeaturesInfo{Rbac: true},
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

// Read implements the API for the files that the machine has.
func (s *machineService) Read(req *machineapi.ReadRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	content, ok := s.boot.file(req.GetPath())
	if !ok {
		return status.Errorf(codes.Unknown, "stat %s: no such file or directory", req.GetPath())
	}
	for chunk := range chunks(content) {
		if err := srv.Send(&common.Data{Bytes: chunk}); err != nil {
			return err
		}
	}
	return nil
}

// chunks cuts content as apid streams it.
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

// file is a file of the running system: some of /proc and what the extensions brought.
func (b *boot) file(path string) ([]byte, bool) {
	switch path {
	case "/proc/sys/kernel/random/boot_id":
		return []byte(b.id + "\n"), true
	case "/proc/cmdline":
		return []byte(b.med.image.Cmdline + "\n"), true
	case loaderDefaultVar:
		name := ""
		if b.m.uefi() {
			name = b.m.defaultEntry(loader{})
		}
		return efiString(name), name != ""
	case "/usr/local/share/schematic/" + b.med.image.SchematicID:
		return []byte(b.med.image.SchematicYAML), b.med.image.SchematicID != ""
	}
	for _, e := range b.med.image.Extensions {
		if content, ok := e.Files[path]; ok {
			return content, true
		}
	}
	return nil, false
}

// Reboot implements the API: kexec unless the firmware is asked for.
func (s *machineService) Reboot(_ context.Context, req *machineapi.RebootRequest) (*machineapi.RebootResponse, error) {
	how := kexec
	if req.GetMode() == machineapi.RebootRequest_POWERCYCLE {
		how = powerCycle
	}
	s.boot.order(how)
	return &machineapi.RebootResponse{Messages: []*machineapi.Reboot{{ActorId: newNodeID()}}}, nil
}

// Shutdown implements the API.
func (s *machineService) Shutdown(context.Context, *machineapi.ShutdownRequest) (*machineapi.ShutdownResponse, error) {
	s.boot.order(powerOff)
	return &machineapi.ShutdownResponse{Messages: []*machineapi.Shutdown{{ActorId: newNodeID()}}}, nil
}
