package helm

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/recast-sh/recast/internal/sim/must"
)

// stored are the series as Prometheus would have stored them.
func stored(t *testing.T, lines []line) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, l := range lines {
		name := must.Get(grammar.ParseMetric(l.series))(t)
		var samples []chunks.Sample
		there := false
		for after := time.Duration(0); after < week; after += scrape {
			v := l.at(after)
			missing := math.IsNaN(v)
			if missing && there {
				v = math.Float64frombits(value.StaleNaN) // Prometheus marks the end of a series
			}
			if !missing || there {
				samples = append(samples, sample{begin.Add(after).UnixMilli(), v})
			}
			there = !missing
		}
		all = append(all, storage.NewListSeries(name, samples))
	}
	return storage.QueryableFunc(func(int64, int64) (storage.Querier, error) {
		return &storage.MockQuerier{SelectMockFunction: selecting(all)}, nil
	})
}

func selecting(all []storage.Series) func(bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		found := slices.DeleteFunc(slices.Clone(all), func(s storage.Series) bool {
			return slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) })
		})
		return &set{found: found, i: -1}
	}
}

// set is a storage.SeriesSet.
type set struct {
	found []storage.Series
	i     int
}

func (s *set) Next() bool                      { s.i++; return s.i < len(s.found) }
func (s *set) At() storage.Series              { return s.found[s.i] }
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

// sample is a chunks.Sample of a gauge.
type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                    { return s.t }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.v }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }
