package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sietch-dev/sietch/runtime"
)

// metrics are what /metrics shows.
type metrics struct {
	handler  http.Handler
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
	execs    prometheus.Gauge
	streams  *prometheus.GaugeVec
	replayed prometheus.Counter
	parked   prometheus.Counter
	woken    prometheus.Counter
}

func newMetrics(reg *prometheus.Registry, e runtime.Sandboxes, version string) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sietch_http_requests_total", Help: "Requests by route and status."}, []string{"method", "route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sietch_http_request_seconds", Help: "Duration of requests by route.",
			Buckets: []float64{.001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 4, 8, 16, 32, 64, 128}}, []string{"method", "route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sietch_http_requests_in_flight", Help: "Requests being answered."}),
		execs:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "sietch_execs_running", Help: "Commands that somebody waits for."}),
		streams:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sietch_streams_open", Help: "Open streams by kind."}, []string{"kind"}),
		replayed: prometheus.NewCounter(prometheus.CounterOpts{Name: "sietch_idempotent_replays_total", Help: "Answers given again for an Idempotency-Key."}),
		parked:   prometheus.NewCounter(prometheus.CounterOpts{Name: "sietch_sandboxes_parked_total", Help: "Idle sandboxes committed and stopped."}),
		woken:    prometheus.NewCounter(prometheus.CounterOpts{Name: "sietch_sandboxes_woken_total", Help: "Parked sandboxes brought back by a request."}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "sietch_build_info", Help: "The version of the server.", ConstLabels: prometheus.Labels{"version": version}})
	build.Set(1)
	reg.MustRegister(m.requests, m.seconds, m.inFlight, m.execs, m.streams, m.replayed, m.parked, m.woken, build,
		&machines{engine: e}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, MaxRequestsInFlight: 4, Timeout: 20 * time.Second})
	return m
}

// count records a request. The route is a pattern, never a path: what clients
// make up must not become a time series.
func (m *metrics) count(method, route string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(method, route).Observe(took.Seconds())
}

// machines asks the engine when it is scraped.
type machines struct{ engine runtime.Sandboxes }

var (
	sandboxesDesc = prometheus.NewDesc("sietch_sandboxes", "Sandboxes by state.", []string{"state"}, nil)
	memoryDesc    = prometheus.NewDesc("sietch_sandboxes_memory_bytes", "RAM given to sandboxes that run or are paused.", nil, nil)
)

func (c *machines) Describe(ch chan<- *prometheus.Desc) {
	ch <- sandboxesDesc
	ch <- memoryDesc
}

func (c *machines) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	boxes, err := c.engine.List(ctx, true)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(sandboxesDesc, err)
		return
	}
	n := map[runtime.State]int{}
	var memory int64
	for _, b := range boxes {
		n[b.State]++
		if b.State == runtime.Running || b.State == runtime.Paused {
			memory += b.MemoryBytes
		}
	}
	for _, s := range []runtime.State{runtime.Running, runtime.Paused, runtime.Stopped, runtime.Failed} {
		ch <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, float64(n[s]), string(s))
	}
	ch <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(memory))
}

// Metrics is GET /metrics.
func (s *Server) Metrics(w http.ResponseWriter, r *http.Request) {
	if err := s.unlimited(r); err != nil {
		s.fail(w, r, err)
		return
	}
	s.metrics.handler.ServeHTTP(w, r)
}
