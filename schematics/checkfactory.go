package schematics

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// CheckFactory refuses a factory that would build something other than the lock
// says, under the lock's name: kind Refused, with all differences.
func (l Lock) CheckFactory(ctx context.Context, name string, f Factory) error {
	e := l.Schematics[name]
	extensions, err := f.Extensions(ctx, l.Talos)
	if err != nil {
		return fmt.Errorf("list the factory's extensions for Talos %s: %w", l.Talos, err)
	}
	differs := e.Outdated(extensions)
	if e.Overlay != nil {
		overlays, err := f.Overlays(ctx, l.Talos)
		if err != nil {
			return fmt.Errorf("list the factory's overlays for Talos %s: %w", l.Talos, err)
		}
		differs = append(differs, e.OutdatedOverlay(overlays)...)
	}
	var errs []error
	for _, w := range differs {
		errs = append(errs, fault.WithHint(errors.New(w.String()), "%s", w.Hint))
	}
	if l.SecureBoot {
		certificate, err := f.SecureBootCertificate(ctx)
		if err != nil {
			return fmt.Errorf("ask for the factory's Secure Boot certificate: %w", err)
		}
		errs = append(errs, l.checkSecureBoot(certificate))
	}
	return fault.BuildFailed.Of(fault.As(fault.Refused, errors.Join(errs...)))
}
