-- put: place items on the timeline, all or nothing in one step.
-- KEYS: leases claims bodies parked dead reasons notes marks bell watch rules timelines...
-- ARGV: not_after (server time past which nothing is put; 0 for none; with '!' behind it only a queue that is declared
--       takes anything; with '~N' a queue that nobody has declared lives for N milliseconds), then eight per item:
--       id, body, due, level, mode, expect, mark_field, mark
--   due     '' now; '+N' in N microseconds; otherwise the moment itself
--   mode    new      put it only if the id is unknown
--           alias    like new, but under another id ('id~1' to 'id~9', the first that is free) if the id is taken
--           again    like alias, for a put that may have been done before: if one of these ids has this very body, it was
--           replace  new body and due wherever it stands; a lease on it ends, what is parked stays parked
--           rebody   new body, its place and due as they are; an unknown or dead id is put
--   expect  '' anything; '-' only if the id is unknown or has no body; otherwise the SHA-1 of the body it must have
--   mark    'epoch nominal' to be above what mark_field holds, or the item is refused, and outdated if its epoch is the
--           lower one; '' for none
-- RETURNS: two per item: outcome (put exists replaced rebodied refused outdated changed late unknown), id
-- RULES: 1 (one place), 2 (server's clock), 5 (rings for what is due now or sooner than any claimer wakes),
--        7 (a queue with a life of its own takes all its keys along; one with a length drops its oldest)
local leases, claims, bodies, parked, dead, reasons, notes, marks, bell, watch, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
local not_after = tonumber(string.match(ARGV[1], '^%d+'))
local declared_only = string.sub(ARGV[1], -1) == '!'
local passing = string.match(ARGV[1], '~(%d+)$') -- the life that a queue of nobody's gets
local FIRST, WIDTH = 2, 8
local COPIES = 9 -- of one id there are so many names that are looked for (celery_zsched/types.py)
-- @include clock record ring place levels life

local function moment(spec, position)
  if spec == '' then
    return stamp(now + position) -- a microsecond apart, so that one batch keeps its order
  elseif string.sub(spec, 1, 1) == '+' then
    return stamp(now + tonumber(string.sub(spec, 2)))
  end
  return spec
end

-- Why an occurrence is not above the mark; nil if it is. The mark is raised when the item is put.
local function below(field, mark)
  local held = field ~= '' and call('HGET', marks, field)
  if not held then
    return nil
  end
  local held_epoch, held_nominal = string.match(held, '^(-?%d+) (-?%d+)$')
  local epoch, nominal = string.match(mark, '^(-?%d+) (-?%d+)$')
  held_epoch, epoch = tonumber(held_epoch), tonumber(epoch)
  if epoch < held_epoch then
    return 'outdated'
  elseif epoch == held_epoch and tonumber(nominal) <= tonumber(held_nominal) then
    return 'refused'
  end
  return nil
end

local soonest -- of what was put: who wakes for that learns of the rest

local function wait_until(id, due, level)
  call('ZADD', waits_at(level), due, id)
  soonest = math.min(soonest or math.huge, tonumber(due))
end

local function enqueue(id, body, due, level)
  wait_until(id, due, level)
  call('HSET', bodies, id, body)
end

local function replace(id, body, due, level, place, old_level)
  call('HSET', bodies, id, body)
  call('HDEL', claims, id)
  if place == 'parked' then
    call('ZADD', parked, due, id)
    if level > 0 then
      call('HSET', claims, id, write_record(voided(), 0, level, due, ''))
    end
    return
  end
  lift(id, place, old_level)
  wait_until(id, due, level)
end

-- An id that is free, and that a look-up of `id` finds as long as there are not too many.
local function another(id, at)
  for copy = 1, COPIES do
    local found = id .. '~' .. copy
    if call('HEXISTS', bodies, found) == 0 then
      return found
    end
  end
  local found = id .. '~' .. stamp(at)
  while call('HEXISTS', bodies, found) == 1 do -- in a transaction the clock stands still
    at = at + 1
    found = id .. '~' .. stamp(at)
  end
  return found
end

-- The id under which this very body stands, if it does.
local function put_before(id, body)
  local names = {id}
  for copy = 1, COPIES do
    names[copy + 1] = id .. '~' .. copy
  end
  for position, text in ipairs(call('HMGET', bodies, unpack(names))) do
    if text == body then
      return names[position]
    end
  end
  return nil
end

local function put(at, position)
  local id, body, level, mode, expect = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5]
  local field, mark = ARGV[at + 6], ARGV[at + 7]
  local due = moment(ARGV[at + 2], position)
  local old = call('HGET', bodies, id)
  if expect ~= '' and (old and redis.sha1hex(old) or '-') ~= expect then
    return 'changed', id
  end
  local reason = below(field, mark)
  if reason then
    return reason, id
  end
  local outcome = 'put'
  if old and mode == 'new' then
    return 'exists', id
  end
  local before = mode == 'again' and put_before(id, body)
  if before then
    return 'exists', before
  elseif old and (mode == 'alias' or mode == 'again') then
    id = another(id, now + position)
    enqueue(id, body, due, level)
  elseif mode == 'replace' or mode == 'rebody' then
    local place, old_level = find_place(id) -- without a body, too: what was evicted, or deleted by hand, stands there still
    if mode == 'rebody' and old and place and place ~= 'dead' then
      call('HSET', bodies, id, body)
      outcome = 'rebodied'
    elseif old or place then
      replace(id, body, due, level, place, old_level)
      outcome = 'replaced'
    else
      enqueue(id, body, due, level)
    end
  else
    enqueue(id, body, due, level)
  end
  if field ~= '' then
    call('HSET', marks, field, mark)
  end
  return outcome, id
end

-- Drop what a queue's length does not hold: of what is due, the least urgent first, oldest first.
local function bound_length(most)
  local ready, DROP_AT_MOST = 0, 1000
  for level = 1, #timelines do
    ready = ready + call('ZCOUNT', timelines[level], '-inf', stamp(now + DROP_AT_MOST))
  end
  local excess, dropped = math.min(ready - most, DROP_AT_MOST), 0
  for level = #timelines, 1, -1 do
    if excess > dropped then
      local oldest =
        call('ZRANGEBYSCORE', timelines[level], '-inf', stamp(now + DROP_AT_MOST), 'LIMIT', 0, excess - dropped)
      if #oldest > 0 then
        call('ZREM', timelines[level], unpack(oldest))
        call('HDEL', claims, unpack(oldest))
        call('HDEL', bodies, unpack(oldest))
        call('HDEL', notes, unpack(oldest))
        dropped = dropped + #oldest
      end
    end
  end
  if dropped > 0 then
    call('HINCRBY', rules, 'overflowed', dropped)
  end
end

local life = life_of(rules)
local answer = {}
for at = FIRST, #ARGV, WIDTH do
  local outcome, id
  if not_after > 0 and now > not_after then
    outcome, id = 'late', ARGV[at]
  elseif declared_only and not life then
    outcome, id = 'unknown', ARGV[at]
  else
    outcome, id = put(at, (at - FIRST) / WIDTH)
  end
  answer[#answer + 1] = outcome
  answer[#answer + 1] = id
end
if soonest then
  ring_for(soonest, bell, watch)
end
if passing and not life and soonest then
  call('HSET', rules, 'expires', passing, 'special', '1')
  life = tonumber(passing)
end
if life then
  local most = tonumber(call('HGET', rules, 'max_length') or '')
  if most then
    bound_length(most)
  end
  live_on(life)
end
return answer
