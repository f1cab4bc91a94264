package talos

import (
	"fmt"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// pullProgress reduces the many reports that a machine sends for each layer to a few lines.
type pullProgress struct {
	say    func(string)
	layers map[string]pulledLayer
	said   int64 // tenths of the whole
}

// pulledLayer is in bytes; total is the largest one reported.
type pulledLayer struct{ done, total int64 }

func newPullProgress(say func(string)) *pullProgress {
	return &pullProgress{say: say, layers: map[string]pulledLayer{}}
}

// add reports the progress whenever another tenth is done.
func (p *pullProgress) add(m *machineapi.ImageServicePullProgress) {
	if m.GetProgress() == nil {
		return
	}
	// During and after the extraction of a layer, the machine reports no total for it.
	layer := p.layers[m.GetLayerId()]
	layer.total = max(layer.total, m.GetProgress().GetTotal())
	layer.done = layer.total
	if m.GetProgress().GetStatus() == machineapi.ImageServicePullLayerProgress_DOWNLOADING {
		layer.done = min(m.GetProgress().GetOffset(), layer.total)
	}
	p.layers[m.GetLayerId()] = layer
	var done, total int64
	for _, l := range p.layers {
		done, total = done+l.done, total+l.total
	}
	if total <= 0 || done*10/total <= p.said {
		return
	}
	p.said = done * 10 / total
	unit, shift := "MiB", 20
	if total < 1<<20 {
		unit, shift = "KiB", 10
	}
	p.say(fmt.Sprintf("pulled %d of %d %s", done>>shift, total>>shift, unit))
}

// lastLines are the last lines of an installer, which say why it failed.
type lastLines []string

func (l *lastLines) add(line string) {
	const keep = 5
	*l = append(*l, line)
	*l = slices.Clone((*l)[max(0, len(*l)-keep):])
}

func (l lastLines) String() string {
	if len(l) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(l, "; ")
}
