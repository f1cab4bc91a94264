package talos

import (
	"fmt"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// pullProgress makes few lines of the many reports that a machine sends for each layer.
type pullProgress struct {
	say    func(string)
	layers map[string]*machineapi.ImageServicePullLayerProgress
	said   int64 // tenths of the whole
}

func newPullProgress(say func(string)) *pullProgress {
	return &pullProgress{say: say, layers: map[string]*machineapi.ImageServicePullLayerProgress{}}
}

// add says where the pull is each time that another tenth is done.
func (p *pullProgress) add(m *machineapi.ImageServicePullProgress) {
	if m.GetProgress() == nil {
		return
	}
	p.layers[m.GetLayerId()] = m.GetProgress()
	var done, total int64
	for _, l := range p.layers {
		total += l.GetTotal()
		if l.GetStatus() == machineapi.ImageServicePullLayerProgress_DOWNLOADING {
			done += min(l.GetOffset(), l.GetTotal())
		} else {
			done += l.GetTotal()
		}
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
