package main

import (
	"strings"
	"time"

	"github.com/docker/go-units"
)

// short is the first twelve digits of an id.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

// ago is a time as people say it.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strings.ToLower(units.HumanDuration(max(now.Sub(t), 0))) + " ago"
}

// size is a number of bytes as people read it: 512MiB.
func size(bytes int64) string { return units.BytesSize(float64(bytes)) }
