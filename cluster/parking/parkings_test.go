package parking

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestParked(t *testing.T) {
	t.Parallel()
	p := editedPark(parkWK1("scsi30 r1"), func(p *Parking) {
		p.Record.Disks = []ParkedDisk{{Key: "scsi0", ParkKey: "scsi29", System: true}, {Key: "scsi1", ParkKey: "scsi1"}, {Key: "scsi2", Holder: 9101}}
	})
	if got := p.Parked(); got != nil {
		t.Errorf("before anything is handed over: %v", got)
	}
	p.VM.Config["scsi1"] = "dir:9900/vm-9900-disk-0.raw,size=8G"
	must.Equal(t, "parked", []string{"scsi1"}, p.Parked())
}
