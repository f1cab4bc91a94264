package page

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	benchClusters = 100
	benchNodes    = 20
	benchRolls    = 10 // of a cluster: spec.rolls.keep
	maxPage       = time.Second
	maxPageMiB    = 10
)

// memory is objects as controller-runtime's cache has them: nothing of a list is copied but the structs.
type memory struct {
	client.Reader
	clusters []v1alpha1.TalosCluster
	rolls    []v1alpha1.ImageRoll
	fleets   []v1alpha1.FleetRoll
}

func (m *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	switch list := list.(type) {
	case *v1alpha1.TalosClusterList:
		list.Items = slices.Clone(m.clusters)
	case *v1alpha1.FleetRollList:
		list.Items = slices.Clone(m.fleets)
	case *v1alpha1.ImageRollList:
		for _, r := range m.rolls {
			if (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(r.Labels))) && (o.FieldSelector == nil || o.FieldSelector.String() == "spec.clusterName="+r.Spec.ClusterName) {
				list.Items = append(list.Items, r)
			}
		}
	}
	return nil
}

func (m *memory) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.TalosCluster:
		*o = *m.clusters[0].DeepCopy()
	case *v1alpha1.FleetRoll:
		*o = *m.fleets[0].DeepCopy()
	case *v1alpha1.ImageRoll:
		*o = *m.rolls[0].DeepCopy()
	}
	return nil
}

// large is a fleet whose clusters are all rolled by one FleetRoll, with long lists.
func large(b *testing.B) *memory {
	b.Helper()
	store := example(b).site.objects
	var c v1alpha1.TalosCluster
	var r v1alpha1.ImageRoll
	var f v1alpha1.FleetRoll
	for name, o := range map[string]client.Object{"oslo-1": &c, "oslo-1-4": &r, "autumn": &f} {
		must.Do(b, store.Get(b.Context(), client.ObjectKey{Namespace: "clusters", Name: name}, o))
	}
	for len(c.Status.Check.Reasons) < benchNodes {
		c.Status.Check.Reasons = append(c.Status.Check.Reasons, c.Status.Check.Reasons[0])
		r.Status.Plan.Lines = append(r.Status.Plan.Lines, r.Status.Plan.Lines[0])
		r.Status.Attempts = append(r.Status.Attempts, r.Status.Attempts[0])
	}
	m := &memory{}
	member := f.Status.Members[3]
	f.Status.Members = nil
	for i := range benchClusters {
		c.Name = fmt.Sprintf("c%d", i)
		m.clusters = append(m.clusters, *c.DeepCopy())
		for j := range benchRolls {
			r.Name, r.Spec.ClusterName, r.Labels = fmt.Sprintf("%s-%d", c.Name, j), c.Name, map[string]string{v1alpha1.LabelFleet: fmt.Sprintf("autumn%d", j)}
			m.rolls = append(m.rolls, *r.DeepCopy())
		}
		member.Cluster, member.Roll = c.Name, c.Name+"-0"
		f.Status.Members = append(f.Status.Members, member)
	}
	f.Name = "autumn0"
	m.fleets = []v1alpha1.FleetRoll{f}
	return m
}

// BenchmarkFleetPages draws each page of 100 clusters of 20 stale nodes, with all rolls that are kept.
func BenchmarkFleetPages(b *testing.B) {
	v := browse(b, large(b))
	for _, path := range []string{"/", "/clusters/clusters/c0", "/rolls/clusters/c0-0", "/fleets", "/fleets/clusters/autumn0"} {
		b.Run("page "+path, func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			size := 0
			for b.Loop() {
				w := v.ask(http.MethodGet, "localhost:1", path)
				if size = w.Body.Len(); w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
			runtime.ReadMemStats(&after)
			took, mib := b.Elapsed()/time.Duration(b.N), float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/(1<<20)
			b.ReportMetric(mib, "MiB")
			b.ReportMetric(float64(size)/1024, "KiB")
			if took > maxPage || mib > maxPageMiB {
				b.Errorf("it took %s and allocated %.1f MiB, more than %s or %d", took, mib, maxPage, maxPageMiB)
			}
		})
	}
}
