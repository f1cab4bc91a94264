package talosapi

import (
	"context"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Memory implements the API. The kernel itself uses a part of the VM's memory.
func (s *machineService) Memory(context.Context, *emptypb.Empty) (*machineapi.MemoryResponse, error) {
	total := uint64(s.boot.m.hw.Memory) * 1024 / 32 * 31
	return &machineapi.MemoryResponse{Messages: []*machineapi.Memory{{Meminfo: &machineapi.MemInfo{
		Memtotal: total, Memfree: total / 2, Memavailable: total / 4 * 3,
	}}}}, nil
}

// storageService is the API that preceded disk resources.
type storageService struct {
	storage.UnimplementedStorageServiceServer
	boot *boot
}

var _ storage.StorageServiceServer = (*storageService)(nil)

// Disks implements the API.
func (s *storageService) Disks(context.Context, *emptypb.Empty) (*storage.DisksResponse, error) {
	devs := s.boot.m.devices()
	system, _ := systemDisk(devs)
	answer := &storage.Disks{}
	for _, d := range devs {
		kind := storage.Disk_HDD
		if d.CDROM {
			kind = storage.Disk_CD
		}
		answer.Disks = append(answer.Disks, &storage.Disk{
			DeviceName: d.path(), Size: uint64(d.SizeBytes), Model: d.model, Serial: d.serial, Wwid: d.wwid, Type: kind, BusPath: d.busPath,
			SystemDisk: d.Key == system.Key, Subsystem: "/sys/class/block",
		})
	}
	return &storage.DisksResponse{Messages: []*storage.Disks{answer}}, nil
}
