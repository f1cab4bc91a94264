package talosapi

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/protobuf/types/known/durationpb"
)

// tryFor is the duration of a trial.
func tryFor(asked *durationpb.Duration) time.Duration {
	if asked == nil {
		return constants.ConfigTryTimeout
	}
	return asked.AsDuration()
}

func triedFor(d time.Duration) string {
	return fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", d)
}

// firstConfig is a machine's first configuration, from maintenance mode. One on trial is
// not stored on disk, not even after the system was installed with it.
type firstConfig struct {
	raw   []byte
	tried bool
}

// try makes a configuration active until d has passed or another one is applied. It is not
// stored (RollbackToConfigAfter).
func (b *boot) try(ctx context.Context, cfg config.Provider, d time.Duration) error {
	before := b.config()
	b.endTrial()
	b.mu.Lock()
	b.trial = time.AfterFunc(b.m.fw.scaled(d), func() {
		ctx, cancel := b.life()
		defer cancel()
		if ctx.Err() != nil {
			return
		}
		b.m.console("rolling back the configuration")
		if err := b.activate(ctx, before); err != nil && ctx.Err() == nil {
			b.m.console("config rollback failed %v", err)
		}
	})
	b.mu.Unlock()
	return b.activate(ctx, cfg)
}

// endTrial keeps the active configuration.
func (b *boot) endTrial() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trial != nil {
		b.trial.Stop()
	}
}

// activate makes a configuration active; the stored one stays.
func (b *boot) activate(ctx context.Context, cfg config.Provider) error {
	st, _ := readState(b.m.devices())
	stored, err := parseConfig(st.Config)
	if err != nil {
		return fmt.Errorf("read the stored configuration: %w", err)
	}
	b.mu.Lock()
	b.cfg = cfg
	b.mu.Unlock()
	return b.publishConfig(ctx, cfg, stored)
}
