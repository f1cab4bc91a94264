package exchange

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/cluster"
)

// mediaToPutBack are those that are not in their drives. One that is gone by now stays
// out: Proxmox puts none in that it has not.
func (r Settings) mediaToPutBack(ctx context.Context, vm cluster.VM) (map[string]string, error) {
	media, err := r.VM.OtherMedia()
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for key, was := range media {
		if is, err := cluster.ParseDisk(key, vm.Config[key]); err != nil || is.Volid != "none" {
			continue // it is there, or somebody else has put something in
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

// takeOut has those media taken out by a change of the VM.
func (r Settings) takeOut(set map[string]string) {
	media, _ := r.VM.OtherMedia() // drives that can't be read were refused
	for key := range media {
		set[key] = "none,media=cdrom"
	}
}
