package observe

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

type podKube struct {
	cluster.KubeReader
	node string
	err  error
}

func (k podKube) OwnNode(context.Context) (string, error) { return k.node, k.err }

func TestReadOwnPod(t *testing.T) {
	t.Parallel()
	silent := fmt.Errorf("no answer: %w", cluster.ErrNotNow)
	forbidden := fault.As(fault.Refused, errors.New("forbidden"))
	for name, c := range map[string]struct {
		kube podKube
		seen Observation
		want OwnPod
		err  error
	}{
		"a pod of this cluster":        {kube: podKube{node: "wk1"}, want: OwnPod{Node: "wk1"}},
		"no pod of it":                 {},
		"forbidden":                    {kube: podKube{err: forbidden}, want: OwnPod{Err: forbidden}},
		"no answer":                    {kube: podKube{err: silent}, want: OwnPod{Err: silent}, err: silent},
		"no answer, a node is out":     {kube: podKube{err: silent}, seen: Observation{Dark: silent}, want: OwnPod{Err: silent}},
		"no answer, it is broken":      {kube: podKube{err: silent}, seen: Observation{First: "cp1", Rebuild: "sum"}, want: OwnPod{Err: silent}},
		"there is no cluster to be in": {kube: podKube{node: "wk1"}, seen: Observation{First: "cp1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := c.seen
			err := o.readOwnPod(t.Context(), Sources{Kube: c.kube})
			if o.OwnPod != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("%+v, %v; want %+v, %v", o.OwnPod, err, c.want, c.err)
			}
		})
	}
}
