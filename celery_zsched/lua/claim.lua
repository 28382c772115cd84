-- claim: take what is free under a lease: ended leases first, then what is due, by level and oldest first.
-- KEYS: leases claims bodies parked dead reasons notes bell watch own rules timelines...
-- ARGV: limit, lease (microseconds; 0: remove at once, for a consumer that never acks), holder, claimer,
--       delivery_limit (0 for none), armed ('1': the caller has a blocking pop outstanding), linger ('1': the caller
--       claims again at once), backup (microseconds), keep (how many dead to keep), expiry ('': bodies
--       are opaque and nothing expires; '0': they are messages, and what has expired is dropped; '1': it is kept with
--       the dead), then pairs id, token to settle first. What the queue was declared with
--       (rules: delivery_limit, message_ttl, expires) has the last word. Nothing is taken while the queue is paused
--       (rules: paused, '1' or the moment at which it ends) or stands still (rules: still, see include/still.lua), and
--       what is for a paused task (rules: paused_tasks, each between newlines) is parked where it is found.
-- RETURNS: now, wake (when to claim again without a ring; '0': only on a ring or after the longest block),
--          {word, id, ...} of what went wrong (lost: no body is left; buried: delivery limit reached; cancelled: while
--          it was with somebody whose lease has ended, so that it is deleted; over: taken over from somebody whose
--          lease has ended, 'token count holder' of his claim and after a newline the id; stale: a settle
--          by somebody who no longer holds the id; left: with a number, how many at least are free and were not taken;
--          expired: was not wanted any more), then five per item: id, body, token, count, due
-- RULES: 1, 2, 3, 4 (settling), 5, 6 (of idle claimers one wakes for the next due moment and one a little later)
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, bell, watch, own, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local timelines = {unpack(KEYS, 12)}
local MOST = 500 -- a call: what a script has taken out of its place it must be able to write in one go
local limit, lease, holder, claimer = math.min(tonumber(ARGV[1]), MOST), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local delivery_limit, armed, linger, backup = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7] == '1', tonumber(ARGV[8])
local keep, are_messages, bury_expired = tonumber(ARGV[9]), ARGV[10] ~= '', ARGV[10] == '1'
local FIRST_SETTLE = 11
local PARK_SPAN = 200 -- how many due ids are looked at in search of those that are not for a paused task
local PARK_BYTES = 1000000 -- and how much of their bodies
-- @include clock record ring settle dead life still

local troubles = {}
local ids, tokens, counts, dues, records = {}, {}, {}, {}, {}

local function trouble(word, id)
  troubles[#troubles + 1] = word
  troubles[#troubles + 1] = id
end

local function take(id, record, level, due)
  local old, count = read_record(record)
  local token = next_token(old, now)
  local position = #ids + 1
  ids[position], tokens[position], counts[position], dues[position] = id, token, count + 1, due
  records[#records + 1] = id
  records[#records + 1] = write_record(token, count + 1, level, due, holder)
end

-- First of all, since Redis 6.2 lets a script go on at maxmemory if its first write takes no memory.
call('ZREM', watch, claimer)

for _, id in ipairs(settle(FIRST_SETTLE)) do
  trouble('stale', id)
end

local life, message_ttl, paused_tasks, resumes = life_of(rules), nil, nil, nil
if life then
  local ruled = call('HMGET', rules, 'expires', 'message_ttl', 'delivery_limit', 'paused', 'paused_tasks', 'still')
  life = tonumber(ruled[1] or '') or -1 -- whoever claims renews it
  message_ttl = tonumber(ruled[2] or '')
  delivery_limit = tonumber(ruled[3] or '') or delivery_limit
  paused_tasks = ruled[5]
  if ruled[4] then
    local ends = tonumber(ruled[4])
    if ends ~= 1 and ends <= now then
      call('HDEL', rules, 'paused')
    else
      limit = 0
      resumes = ends ~= 1 and ends or nil
    end
  end
  if ruled[6] then
    local ends = still_until(ruled[6])
    if ends <= now then
      call('HDEL', rules, 'still')
    else
      limit = 0
      resumes = math.max(resumes or 0, ends)
    end
  end
  resumes = resumes and resumes <= now + BLOCK_MAX_US and resumes or nil
end

-- The task that a body is for, if that is paused: its name is the body's first line (celery_zsched/message.py).
local function paused_task(body)
  local name_end = body and string.find(body, '\n', 1, true)
  local name = name_end and string.sub(body, 1, name_end - 1)
  return name and string.find(paused_tasks, '\n' .. name .. '\n', 1, true) and name
end

-- Park those of `found` (ids in the sorted set `key`) that are for paused tasks; return at most `room` of the others.
local again = false -- whether what was due is set aside or deleted, so that there may be more behind it
local function sift(key, found, scores, level, room)
  local held = call('HMGET', claims, unpack(found))
  local kept, kept_scores, bytes = {}, {}, 0
  for position, id in ipairs(found) do
    local body = call('HGET', bodies, id)
    bytes = bytes + (body and #body or 0)
    local task = paused_task(body)
    if task then
      local token, count, held_level, due, last = read_record(held[position])
      due = due or scores[position]
      call('ZREM', key, id)
      call('ZADD', parked, due, id)
      call('HSET', reasons, id, 'task:' .. task)
      if held[position] or level > 0 then
        call('HSET', claims, id, write_record(voided(token), count, level or held_level, due, last))
      end
      again = true
    elseif #kept < room then
      kept[#kept + 1], kept_scores[#kept_scores + 1] = id, scores[position]
    end
    if #kept >= room or bytes > PARK_BYTES then
      break
    end
  end
  return kept, kept_scores
end

-- Whether a message is no longer wanted. Its own time to live stands at the beginning of its body's second line
-- (celery_zsched/message.py); it counts from when it was due.
local function is_expired(body, due)
  if not are_messages then
    return false
  end
  local first_end = string.find(body, '\n', 1, true) -- a plain search, since bodies may be long
  local ttl = first_end and tonumber(string.match(body, '^(%d+) ', first_end + 1) or '') or message_ttl
  if ttl and message_ttl then
    ttl = math.min(ttl, message_ttl)
  end
  return ttl and now > tonumber(due) + ttl
end

local function forget(gone)
  call('ZREM', leases, unpack(gone))
  call('HDEL', claims, unpack(gone))
  call('HDEL', bodies, unpack(gone))
  call('HDEL', notes, unpack(gone))
end

-- Delete those of the ids under ended leases that were cancelled meanwhile; return the others.
local function without_cancelled(found)
  local held, kept, gone = call('HMGET', claims, unpack(found)), {}, {}
  for position, id in ipairs(found) do
    if is_cancelled(held[position]) then
      trouble('cancelled', id)
      gone[#gone + 1] = id
    else
      kept[#kept + 1] = id
    end
  end
  if #gone > 0 then
    forget(gone)
    again = true
  end
  return kept
end

-- Ended leases: their holder is gone or wedged.
local ended = limit > 0 and call('ZRANGEBYSCORE', leases, '-inf', stamp(now), 'LIMIT', 0, limit) or {}
if #ended > 0 then
  ended = without_cancelled(ended)
end
if paused_tasks and #ended > 0 then
  ended = sift(leases, ended, {}, nil, limit)
end
if #ended > 0 then
  local held = call('HMGET', claims, unpack(ended))
  local buried = false
  for position, id in ipairs(ended) do
    local old, count, level, due, last = read_record(held[position])
    if delivery_limit > 0 and count >= delivery_limit then
      call('ZREM', leases, id)
      call('ZADD', dead, stamp(now), id)
      call('HSET', reasons, id, 'delivered ' .. count .. ' times without an end')
      call('HSET', claims, id, write_record(voided(old), count, level, due, last))
      trouble('buried', id)
      buried = true
    else
      if old then
        trouble('over', old .. ' ' .. count .. ' ' .. last .. '\n' .. id)
      end
      take(id, held[position], level, due or stamp(now))
    end
  end
  if buried then
    bound_dead(keep)
  end
end

-- What is due.
for level = 1, #timelines do
  local room = limit - #ids
  if room <= 0 then
    break
  end
  local span = paused_tasks and math.max(room, PARK_SPAN) or room
  local found = call('ZRANGEBYSCORE', timelines[level], '-inf', stamp(now), 'WITHSCORES', 'LIMIT', 0, span)
  local due_ids, scores = {}, {}
  for at = 1, #found, 2 do
    due_ids[#due_ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  if paused_tasks and #due_ids > 0 then
    due_ids, scores = sift(timelines[level], due_ids, scores, level - 1, room)
  end
  if #due_ids > 0 then
    call('ZREM', timelines[level], unpack(due_ids))
    local held = call('HMGET', claims, unpack(due_ids))
    for position, id in ipairs(due_ids) do
      local _, _, _, first_due = read_record(held[position])
      take(id, held[position], level - 1, first_due or scores[position])
    end
  end
end

local answer = {stamp(now), '0', troubles}
local FIXED = #answer
if #ids > 0 then
  local contents = call('HMGET', bodies, unpack(ids))
  local leased, gone, expired = {}, {}, {}
  for position, id in ipairs(ids) do
    local body = contents[position]
    if not body then
      trouble('lost', id)
      gone[#gone + 1] = id
    elseif is_expired(body, dues[position]) then
      trouble('expired', id)
      expired[#expired + 1] = id
    else
      local at = #answer
      answer[at + 1], answer[at + 2], answer[at + 3] = id, body, tokens[position]
      answer[at + 4], answer[at + 5] = counts[position], dues[position]
      leased[#leased + 1] = stamp(now + lease)
      leased[#leased + 1] = id
    end
  end
  if lease > 0 then
    call('HSET', claims, unpack(records))
    if #leased > 0 then
      call('ZADD', leases, unpack(leased))
    end
  else
    gone = ids
  end
  if life then
    call('HINCRBY', rules, 'claimed', #ids) -- what the rate of a queue is told from
  end
  if #expired > 0 then
    if life then
      call('HINCRBY', rules, 'expired', #expired)
    end
    for _, id in ipairs(expired) do
      if bury_expired and lease > 0 then
        local token, count, level, due, last = read_record(call('HGET', claims, id))
        call('ZREM', leases, id)
        call('ZADD', dead, stamp(now), id)
        call('HSET', reasons, id, 'expired')
        call('HSET', claims, id, write_record(voided(token), count - 1, level, due, last))
      elseif lease > 0 then
        gone[#gone + 1] = id
      end
    end
    if bury_expired then
      bound_dead(keep)
    end
  end
  if #gone > 0 then
    forget(gone)
  end
  if #answer == FIXED then
    answer[2] = stamp(now) -- all of them were lost or expired: there may be more to take
  end
  if armed then
    call('ZADD', own, 0, 'own') -- ends the caller's own blocking pop, so that it takes no ring while it works
    call('PEXPIRE', own, 60000)
  end
end

-- The next thing to come: the earliest waiting moment or lease end.
local function next_moment()
  local soonest
  local function consider(key)
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local score = first[2] and tonumber(first[2])
    if score and (not soonest or score < soonest) then
      soonest = score
    end
  end
  for level = 1, #timelines do
    consider(timelines[level])
  end
  consider(leases)
  return soonest
end

-- How many are left that are free, as far as ended leases or one level tell: what a caller needs to choose its next
-- limit.
local function ready_left()
  local over = call('ZCOUNT', leases, '-inf', stamp(now))
  if over > 0 then
    return over
  end
  for level = 1, #timelines do
    local count = call('ZCOUNT', timelines[level], '-inf', stamp(now))
    if count > 0 then
      return count
    end
  end
  return 0
end

if #ids >= limit then
  -- Something may be left that this caller has no room for.
  if limit > 0 then
    local left = ready_left()
    if left > 0 then
      trouble('left', stamp(left))
    end
    local soonest = next_moment()
    if soonest then
      ring_for(soonest, bell, watch)
    end
  end
elseif #ids > 0 then
  local soonest = not linger and next_moment()
  if soonest then
    ring_for(soonest, bell, watch) -- this caller may be busy when it comes: somebody else should watch
  end
elseif again then
  answer[2] = stamp(now)
else
  call('DEL', bell, own) -- nothing is due, so no ring is owed to anybody
  local soonest = next_moment()
  if soonest and soonest <= now + BLOCK_MAX_US then
    call('ZREMRANGEBYSCORE', watch, '-inf', '(' .. stamp(now))
    local wake
    if call('ZCOUNT', watch, '-inf', stamp(soonest)) == 0 then
      wake = soonest
    elseif call('ZCOUNT', watch, '-inf', stamp(soonest + backup)) < 2 then
      wake = soonest + backup -- in case the claimer that wakes for it has died
    end
    if wake and claimer ~= '' then -- a claimer without a name does not wait
      call('ZADD', watch, stamp(wake), claimer)
      call('PEXPIRE', watch, 60000)
      answer[2] = stamp(wake)
    end
  end
end
if resumes then
  answer[2] = stamp(resumes)
end
if life then
  live_on(life)
end
return answer
