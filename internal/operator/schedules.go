package operator

import (
	"fmt"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/window"
)

// schedules are those of a spec.
type schedules struct {
	drift   window.Schedule
	windows window.Set
}

// readSchedules reads them. The error names the field.
func readSchedules(spec v1alpha1.TalosClusterSpec) (schedules, error) {
	var s schedules
	var err error
	if s.drift, err = window.ParseSchedule(spec.Drift.Schedule, spec.Drift.TimeZone); err != nil {
		return s, fmt.Errorf("spec.drift.%w", err)
	}
	for i, w := range spec.Windows {
		parsed, err := window.Parse(w.Schedule, w.TimeZone, w.Duration.Duration)
		if err != nil {
			return s, fmt.Errorf("spec.windows[%d].%w", i, err)
		}
		s.windows = append(s.windows, parsed)
	}
	return s, nil
}

// Windows are the maintenance windows of a cluster.
func Windows(spec v1alpha1.TalosClusterSpec) (window.Set, error) {
	plans, err := readSchedules(spec)
	return plans.windows, err
}
