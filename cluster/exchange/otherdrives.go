package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// mediaToPutBack returns the other media that are not in their drives, by drive. It omits media
// that no longer exist: Proxmox rejects those.
func (r *Replace) mediaToPutBack(ctx context.Context, vm cluster.VM) (map[string]string, error) {
	media, err := r.VM.OtherMedia()
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for key, was := range media {
		if is, err := cluster.ParseDisk(key, vm.Config[key]); err != nil || is.Volid != "none" {
			continue // it is in the drive, or someone inserted another one
		}
		there, err := r.Proxmox.HasVolume(ctx, vm.Host, was.Volid)
		if err != nil {
			return nil, fmt.Errorf("look for %s: %w", was.Volid, err)
		}
		if there {
			set[key] = was.Value()
		}
	}
	return set, nil
}

// ejectMedia adds to set the settings that eject these media.
func (r *Replace) ejectMedia(set map[string]string) {
	media, _ := r.VM.OtherMedia() // drives that can't be read were refused
	for key := range media {
		set[key] = "none,media=cdrom"
	}
}
