package talosapi

import (
	"context"
	"errors"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errNoPrevious = errors.New("previous UKI not found")

// Rollback implements the API: the other entry becomes the default, even if the running
// system's probation has ended.
func (s *machineService) Rollback(context.Context, *machineapi.RollbackRequest) (*machineapi.RollbackResponse, error) {
	d, ok := systemDisk(s.boot.m.devices())
	if !ok {
		return nil, status.Error(codes.FailedPrecondition, "system disk not found")
	}
	if err := s.boot.m.revertLoader(d); err != nil {
		return nil, err
	}
	s.boot.order(kexec)
	return &machineapi.RollbackResponse{Messages: []*machineapi.Rollback{{}}}, nil
}

// revertLoader makes the other entry the default.
func (m *machine) revertLoader(d device) error {
	l, ok := readLoader(d)
	if !ok {
		return errNoPrevious
	}
	now, _ := m.selected(l)
	previous, ok := l.other(now.Name)
	if !ok {
		return errNoPrevious
	}
	return m.setDefault(d.Key, previous)
}

// revertUpgrade undoes an upgrade if META still has the fallback entry.
func (m *machine) revertUpgrade() error {
	d, ok := systemDisk(m.devices())
	if !ok {
		return nil
	}
	label := readMeta(d).Upgrade
	if label == "" {
		m.console("no state to revert bootloader")
		return nil
	}
	m.console("reverting failed upgrade, switching to %q", label)
	if err := m.revertLoader(d); err != nil {
		return err
	}
	return m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = "" })
}

// dropFallback ends an upgrade's probation, when the machine is running and ready for the
// first time in a boot. A later upgrade has its own.
func (m *machine) dropFallback() {
	d, ok := systemDisk(m.devices())
	if !ok || readMeta(d).Upgrade == "" {
		return
	}
	if err := m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = "" }); err != nil {
		m.console("remove fallback entry: %v", err)
		return
	}
	m.console("removing fallback entry")
}
