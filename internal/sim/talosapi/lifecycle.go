package talosapi

import (
	"errors"
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lifecycleService installs systems beside the running one. Talos has it since 1.13.
type lifecycleService struct {
	machineapi.UnimplementedLifecycleServiceServer
	boot *boot
}

var _ machineapi.LifecycleServiceServer = (*lifecycleService)(nil)

// Upgrade implements the API. It runs an image that was pulled before, checks only the
// machine itself, and does not reboot. The installer runs to its end even if the caller is
// gone (container.go in lifecycle).
func (s *lifecycleService) Upgrade(req *machineapi.LifecycleServiceUpgradeRequest, srv grpc.ServerStreamingServer[machineapi.LifecycleServiceUpgradeResponse]) error {
	b := s.boot
	if !b.installing.TryLock() {
		return status.Error(codes.FailedPrecondition, "another installation/upgrade is already in progress")
	}
	defer b.installing.Unlock()
	if _, ok := systemDisk(b.m.devices()); !ok {
		return status.Error(codes.FailedPrecondition, "machine is not installed")
	}
	ref := req.GetSource().GetImageName()
	if ref == "" {
		return status.Error(codes.InvalidArgument, "installer image name is required")
	}
	name, err := containerd(req.GetContainerd())
	if err != nil {
		return status.Errorf(codes.Internal, "upgrade failed: %v", err)
	}
	name.ref = ref
	c, ok := b.m.cached(name)
	if !ok {
		return status.Errorf(codes.Internal, "upgrade failed: installer image %q not found in containerd store: image %q: not found", ref, ref)
	}
	ctx, cancel := b.life()
	defer cancel()
	// It hands no machine configuration to the installer, which then takes the boot image's arguments
	// (talos#13967; cmd/installer/cmd/installer/install.go, runInstallCmd).
	err = b.upgradeDisk(ctx, c, "", func(line string) {
		b.m.console("%s", line)
		// the caller may be gone
		_ = srv.Send(progressOf(&machineapi.LifecycleServiceInstallProgress_Message{Message: line + "\n"}))
	})
	var code int32
	if failed, ok := errors.AsType[installerTask](err); ok {
		code, err = failed.code, nil
	}
	if err != nil {
		return status.Errorf(codes.Internal, "upgrade failed: %v", err)
	}
	exit := &machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{
		Response: &machineapi.LifecycleServiceInstallProgress_ExitCode{ExitCode: code},
	}}
	if err := srv.Send(exit); err != nil {
		return fmt.Errorf("send exit code: %w", err)
	}
	return nil
}

func progressOf(m *machineapi.LifecycleServiceInstallProgress_Message) *machineapi.LifecycleServiceUpgradeResponse {
	return &machineapi.LifecycleServiceUpgradeResponse{Progress: &machineapi.LifecycleServiceInstallProgress{Response: m}}
}
