"""The scripts that change coverage inside Redis, each one atomic: a count is never wrong between two commands.

Loaded by `market.coverage.store`, which names the arguments. KEYS are those of `market.coverage.codec.KEY_NAMES`; ARGV
begins with n_layer, n_expert, the caller's clock in ms and the keys' expiry in ms.
"""

from __future__ import annotations

_PRELUDE = """
local counts, pending, holdings, beats, leases, ends, facts, version, targets, since = unpack(KEYS)
local n_layer, n_expert, now, keep_ms = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local RANGE, LEASE, LEASE_RANGE = 6, 30, 8
local is_changed = false

local function add(key, layer, start, stop, delta)
  local at, n = 2 * (layer * n_expert + start), stop - start
  local before, after = redis.call('GETRANGE', key, at, at + 2 * n - 1), {}
  for i = 1, n do
    local low, high = string.byte(before, 2 * i - 1, 2 * i)
    local count = math.max(0, math.min(65535, low + 256 * high + delta))
    after[i] = string.char(count % 256, math.floor(count / 256))
  end
  redis.call('SETRANGE', key, at, table.concat(after))
  is_changed = true
end

local function add_held(held, delta)
  for i = 1, #held, RANGE do
    local layer, start, stop = struct.unpack('<HHH', held, i)
    add(counts, layer, start, stop, delta)
  end
end

-- counts the ranges of all values of a hash
local function counted(hash, size, offset)
  local width, steps = n_expert + 1, {}
  for i = 1, n_layer * width do steps[i] = 0 end
  for _, packed in ipairs(redis.call('HVALS', hash)) do
    for i = 1 + offset, #packed, size do
      local layer, start, stop = struct.unpack('<HHH', packed, i)
      local row = layer * width + 1
      steps[row + start] = steps[row + start] + 1
      steps[row + stop] = steps[row + stop] - 1
    end
  end
  local bytes = {}
  for layer = 0, n_layer - 1 do
    local row, count = layer * width + 1, 0
    for expert = 0, n_expert - 1 do
      count = count + steps[row + expert]
      bytes[#bytes + 1] = string.char(count % 256, math.floor(count / 256))
    end
  end
  return table.concat(bytes)
end

local function mend(key, right)
  local found = redis.call('GET', key)
  if found == right then return 0 end
  redis.call('SET', key, right)
  is_changed = true
  return 1
end

local function mend_both()
  return mend(counts, counted(holdings, RANGE, 0)) + mend(pending, counted(leases, LEASE, LEASE_RANGE))
end

local function make_whole()
  local n_bytes = 2 * n_layer * n_expert
  if redis.call('STRLEN', counts) ~= n_bytes or redis.call('STRLEN', pending) ~= n_bytes then mend_both() end
end

-- keeps the leases of a worker for which `judge` returns an end
local function judge_leases(worker, judge)
  local leased = redis.call('HGET', leases, worker)
  if not leased then redis.call('ZREM', ends, worker) return end
  local kept, first = {}, nil
  for i = 1, #leased, LEASE do
    local id = string.sub(leased, i, i + 7)
    local layer, start, stop, stop_ms, begin_ms = struct.unpack('<HHHdd', leased, i + 8)
    local new_end = judge(id, layer, start, stop, stop_ms, begin_ms)
    if new_end then
      kept[#kept + 1] = id .. struct.pack('<HHHdd', layer, start, stop, new_end, begin_ms)
      if not first or new_end < first then first = new_end end
    else
      add(pending, layer, start, stop, -1)
    end
  end
  if first then
    redis.call('HSET', leases, worker, table.concat(kept))
    redis.call('ZADD', ends, string.format('%.0f', first), worker)
  else
    redis.call('HDEL', leases, worker)
    redis.call('ZREM', ends, worker)
  end
end

local function forget(worker)
  local held = redis.call('HGET', holdings, worker)
  if held then add_held(held, -1) end
  redis.call('HDEL', holdings, worker)
  redis.call('HDEL', facts, worker)
  redis.call('HDEL', since, worker)
  if redis.call('ZREM', beats, worker) == 1 then is_changed = true end
end

local function finish()
  if is_changed then
    -- starts at the clock, so that no version repeats, even after all keys have expired
    if redis.call('EXISTS', version) == 0 then redis.call('SET', version, ARGV[3]) end
    redis.call('INCR', version)
  end
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, keep_ms) end
end

local function is_due(ends_at)
  local first = redis.call('ZRANGE', ends_at, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) <= now
end

local function version_now() return redis.call('GET', version) or '0' end
make_whole()
"""

# worker, held, expiry ms, facts, lease ids to renew, their lease ms, most ms of a lease -> {is new, workers}
BEAT = (
    _PRELUDE
    + """
local worker, held, renewed = ARGV[5], ARGV[6], ARGV[9]
local lease_ms, most_ms = tonumber(ARGV[10]), tonumber(ARGV[11])
local before = redis.call('HGET', holdings, worker) or ''
if before ~= held then
  add_held(before, -1)
  add_held(held, 1)
  if held == '' then redis.call('HDEL', holdings, worker) else redis.call('HSET', holdings, worker, held) end
end
if tonumber(redis.call('ZSCORE', beats, worker) or '0') <= now then redis.call('HSET', since, worker, ARGV[3]) end
if redis.call('ZADD', beats, ARGV[7], worker) == 1 then is_changed = true end
redis.call('HSET', facts, worker, ARGV[8])
local function is_held(layer, start, stop)
  for i = 1, #held, RANGE do
    local l, a, b = struct.unpack('<HHH', held, i)
    if l == layer and a <= start and stop <= b then return true end
  end
end
local function is_renewed(id)
  for i = 1, #renewed, 8 do if string.sub(renewed, i, i + 7) == id then return true end end
end
if redis.call('HEXISTS', leases, worker) == 1 then
  judge_leases(worker, function(id, layer, start, stop, stop_ms, begin_ms)
    if is_held(layer, start, stop) then return nil end
    if stop_ms > now and is_renewed(id) then return math.max(stop_ms, math.min(now + lease_ms, begin_ms + most_ms)) end
    return stop_ms
  end)
end
finish()
return {before == held and 0 or 1, redis.call('ZCARD', beats)}
"""
)

# limit -> number of expired workers and of workers with an expired lease, at most twice the limit
SWEEP = (
    _PRELUDE
    + """
local n = 0
for _, worker in ipairs(redis.call('ZRANGE', beats, '-inf', ARGV[3], 'BYSCORE', 'LIMIT', 0, ARGV[5])) do
  forget(worker)
  n = n + 1
end
for _, worker in ipairs(redis.call('ZRANGE', ends, '-inf', ARGV[3], 'BYSCORE', 'LIMIT', 0, ARGV[5])) do
  judge_leases(worker, function(_, _, _, _, stop_ms) return stop_ms > now and stop_ms or nil end)
  n = n + 1
end
finish()
return n
"""
)

# worker: removes its holdings and leases -> 1 when something has changed
LEAVE = (
    _PRELUDE
    + """
forget(ARGV[5])
judge_leases(ARGV[5], function() return nil end)
finish()
return is_changed and 1 or 0
"""
)

# worker -> {counts, pending, targets, version, held, leased, is anything due, ms until the first lease ends}
LOOK = (
    _PRELUDE
    + """
finish()
local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')
local wait_ms = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return {redis.call('GET', counts), redis.call('GET', pending), redis.call('GET', targets) or '', version_now(),
  redis.call('HGET', holdings, ARGV[5]) or '', redis.call('HGET', leases, ARGV[5]) or '',
  (is_due(beats) or is_due(ends)) and 1 or 0, wait_ms}
"""
)

# -> {version, is anything due}
PEEK = (
    _PRELUDE
    + """
if is_changed then finish() end
return {version_now(), (is_due(beats) or is_due(ends)) and 1 or 0}
"""
)

# worker, lease id, layer, start, stop, end ms, most leases of a worker; as in the view: counts, pending and targets
# of the range, held, leased -> 1 leased, 0 something has changed, -1 the worker has too many leases
CLAIM = (
    _PRELUDE
    + """
local worker, id = ARGV[5], ARGV[6]
local layer, start, stop = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local first, last = 2 * (layer * n_expert + start), 2 * (layer * n_expert + stop) - 1
local leased = redis.call('HGET', leases, worker) or ''
if #leased >= LEASE * tonumber(ARGV[11]) then return -1 end
if redis.call('GETRANGE', counts, first, last) ~= ARGV[12] or redis.call('GETRANGE', pending, first, last) ~= ARGV[13]
  or redis.call('GETRANGE', targets, first, last) ~= ARGV[14]
  or (redis.call('HGET', holdings, worker) or '') ~= ARGV[15] or leased ~= ARGV[16] then return 0 end
add(pending, layer, start, stop, 1)
local lease = id .. struct.pack('<HHHdd', layer, start, stop, tonumber(ARGV[10]), now)
redis.call('HSET', leases, worker, leased .. lease)
redis.call('ZADD', ends, 'LT', ARGV[10], worker)
finish()
return 1
"""
)

# -> how many of counts and pending were wrong
REBUILD = (
    _PRELUDE
    + """
local n = mend_both()
finish()
return n
"""
)

# targets as a string -> 1 when they have changed
SET_TARGETS = (
    _PRELUDE
    + """
local n = mend(targets, ARGV[5])
finish()
return n
"""
)

# KEYS: time of the last turn; ARGV: now ms, period ms, expiry ms -> ms since the last turn when one is due, else -1
TURN = """
local last, now = tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1])
if now >= last and now - last < tonumber(ARGV[2]) then return -1 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return last == 0 and 0 or math.max(0, now - last)
"""
