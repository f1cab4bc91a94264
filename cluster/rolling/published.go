package rolling

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Published finds what recast publish has put on the storages of Proxmox for a node's wanted build, as one host sees it.
type Published struct {
	Proxmox cluster.StorageReader
	Wanted  cluster.Wanted
	Host    string
}

// ISO returns the volid of the boot ISO on the first of the node's storages for it that has it.
func (i Published) ISO(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "boot ISO", "iso/"+i.Wanted.Build.ISOName, i.Wanted.ISOStorages)
}

// Disk is ISO for the disk image.
func (i Published) Disk(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "disk image", "import/"+i.Wanted.Build.DiskName, i.Wanted.DiskStorages)
}

func (i Published) find(ctx context.Context, what, name string, storages []string) (string, error) {
	for _, storage := range storages {
		volid := storage + ":" + name
		found, err := i.Proxmox.HasVolume(ctx, i.Host, volid)
		if err != nil {
			return "", fmt.Errorf("look for %s on %s: %w", volid, i.Host, err)
		}
		if found {
			return volid, nil
		}
	}
	return "", fault.WithHint(fault.ISODiffers.Refusedf("%s %s is on none of %s as host %s sees them", what, path.Base(name), strings.Join(storages, ", "), i.Host), "recast publish")
}
